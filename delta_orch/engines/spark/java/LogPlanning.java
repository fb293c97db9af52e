// Compiled inside the driver's JVM by Janino (see `classic.py`): raw types only, no lambdas.
package delta_orch.spark;

import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.PlanExpression;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateExpression;
import org.apache.spark.sql.catalyst.expressions.aggregate.Count;
import org.apache.spark.sql.catalyst.plans.LeftAnti$;
import org.apache.spark.sql.catalyst.plans.logical.Aggregate;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.Join;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.OneRowRelation;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.Union;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import org.apache.spark.sql.types.LongType$;

/**
 * What the log knows, told to the optimizer: which version is the newest of a table that a query follows, how much a
 * filter leaves of a scan, and how many rows there are.
 */
public final class LogPlanning extends Rule {
  /** Adds the rule to a session, once. */
  public static void install(SparkSession session) {
    scala.collection.immutable.Seq rules = session.experimental().extraOptimizations();
    for (int i = 0; i < rules.length(); i++) {
      if (rules.apply(i) instanceof LogPlanning) {
        return;
      }
    }
    session.experimental().extraOptimizations_$eq((scala.collection.immutable.Seq) rules.appended(new LogPlanning()));
  }

  /** The same rows, of the versions that are the newest now, however often they are read. */
  public static Dataset settled(Dataset rows) {
    LogicalPlan analyzed = rows.queryExecution().analyzed();
    LogicalPlan settled = FollowedRelation.settled(analyzed);
    return settled == analyzed ? rows : Dataset.ofRows((SparkSession) rows.sparkSession(), settled);
  }

  public TreeNode apply(TreeNode plan) {
    LogicalPlan settled = FollowedRelation.settled((LogicalPlan) plan);
    if (settled != plan) {
      // What was pushed down to a followed table is to reach the scan in its place. This rule runs, too.
      return SparkSession.active().sessionState().optimizer().execute(settled);
    }
    return plan.transform(new Step());
  }

  private static final class Step extends scala.runtime.AbstractPartialFunction {
    public boolean isDefinedAt(Object node) {
      return node instanceof Aggregate || node instanceof Filter;
    }

    public Object applyOrElse(Object node, scala.Function1 otherwise) {
      Object changed = null;
      if (node instanceof Aggregate) {
        changed = counted((Aggregate) node);
      } else if (node instanceof Filter) {
        changed = narrowed((Filter) node);
      }
      return changed == null ? otherwise.apply(node) : changed;
    }
  }

  /** The filter over a relation that says how many bytes it leaves; null where nothing changes. */
  private static LogicalPlan narrowed(Filter filter) {
    LogFileIndex index = indexOf(filter.child());
    if (index == null) {
      return null;
    }
    LogicalRelation relation = (LogicalRelation) filter.child();
    List ofPartitions = new ArrayList();
    List ofData = new ArrayList();
    split(filter.condition(), index, ofPartitions, ofData);
    LogFileIndex narrowed = index.narrowed(toSeq(ofPartitions), toSeq(ofData));
    if (narrowed == index) {
      return null;
    }
    HadoopFsRelation files = (HadoopFsRelation) relation.relation();
    HadoopFsRelation fewer =
        new HadoopFsRelation(
            narrowed,
            files.partitionSchema(),
            files.dataSchema(),
            files.bucketSpec(),
            files.fileFormat(),
            files.options(),
            files.sparkSession());
    // Releases of Spark differ in the parameters that follow the relation.
    Object[] values = new Object[relation.productArity()];
    for (int i = 0; i < values.length; i++) {
      values[i] = i == 0 ? fewer : relation.productElement(i);
    }
    try {
      LogicalPlan changed = (LogicalPlan) relation.getClass().getConstructors()[0].newInstance(values);
      changed.copyTagsFrom(relation);
      List children = new ArrayList();
      children.add(changed);
      return (LogicalPlan) filter.withNewChildren(toSeq(children));
    } catch (Exception e) {
      throw new IllegalStateException(e);
    }
  }

  private static void split(Expression condition, LogFileIndex index, List ofPartitions, List ofData) {
    if (condition instanceof And) {
      split((Expression) condition.children().apply(0), index, ofPartitions, ofData);
      split((Expression) condition.children().apply(1), index, ofPartitions, ofData);
    } else if (hasPlan(condition) || !condition.deterministic()) {
      return;
    } else if (isOfPartitions(condition, index)) {
      ofPartitions.add(condition);
    } else {
      ofData.add(condition);
    }
  }

  private static boolean hasPlan(Expression e) {
    if (e instanceof PlanExpression) {
      return true;
    }
    for (int i = 0; i < e.children().length(); i++) {
      if (hasPlan((Expression) e.children().apply(i))) {
        return true;
      }
    }
    return false;
  }

  /** Whether an expression names partition columns, and those alone. */
  private static boolean isOfPartitions(Expression e, LogFileIndex index) {
    scala.collection.Iterator references = e.references().iterator();
    boolean any = false;
    while (references.hasNext()) {
      Object reference = references.next();
      if (!(reference instanceof AttributeReference)
          || !has(index.partitionSchema().fieldNames(), ((AttributeReference) reference).name())) {
        return false;
      }
      any = true;
    }
    return any;
  }

  private static boolean has(String[] names, String name) {
    for (int i = 0; i < names.length; i++) {
      if (names[i].equals(name)) {
        return true;
      }
    }
    return false;
  }

  /** A `count(*)` without groups, as the number it is; null for other aggregates, and where the log does not know. */
  private static LogicalPlan counted(Aggregate aggregate) {
    if (aggregate.groupingExpressions().nonEmpty() || aggregate.isStreaming()) {
      return null;
    }
    scala.collection.immutable.Seq wanted = aggregate.aggregateExpressions();
    for (int i = 0; i < wanted.length(); i++) {
      if (!isCount((Expression) wanted.apply(i))) {
        return null;
      }
    }
    long rows = wanted.isEmpty() ? -1 : rows(aggregate.child());
    if (rows < 0) {
      return null;
    }
    List columns = new ArrayList();
    for (int i = 0; i < wanted.length(); i++) {
      List value = new ArrayList();
      value.add(new Literal(Long.valueOf(rows), LongType$.MODULE$));
      columns.add(((TreeNode) wanted.apply(i)).withNewChildren(toSeq(value)));
    }
    return new Project(toSeq(columns), new OneRowRelation());
  }

  /** `count(*) AS x`. */
  private static boolean isCount(Expression column) {
    if (column.children().length() != 1 || !(column.children().apply(0) instanceof AggregateExpression)) {
      return false;
    }
    AggregateExpression call = (AggregateExpression) column.children().apply(0);
    if (call.isDistinct() || call.filter().isDefined() || !(call.aggregateFunction() instanceof Count)) {
      return false;
    }
    scala.collection.immutable.Seq values = call.aggregateFunction().children();
    for (int i = 0; i < values.length(); i++) {
      if (!(values.apply(i) instanceof Literal) || ((Literal) values.apply(i)).value() == null) {
        return false;
      }
    }
    return true;
  }

  private static long rows(LogicalPlan plan) {
    if (plan instanceof Project) {
      return rows(((Project) plan).child());
    }
    if (plan instanceof Union) {
      long total = 0;
      for (int i = 0; i < plan.children().length(); i++) {
        long some = rows((LogicalPlan) plan.children().apply(i));
        if (some < 0) {
          return -1;
        }
        total += some;
      }
      return total;
    }
    if (plan instanceof Join) {
      // The rows that deletion vectors leave: see `scan.py`.
      Join join = (Join) plan;
      boolean isOurs = join.joinType() == LeftAnti$.MODULE$ && has(names(join.right()), "delta_orch_vector_file");
      return isOurs ? rowsOf(join.left(), true) : -1;
    }
    return rowsOf(plan, false);
  }

  private static String[] names(LogicalPlan plan) {
    String[] names = new String[plan.output().length()];
    for (int i = 0; i < names.length; i++) {
      names[i] = ((org.apache.spark.sql.catalyst.expressions.Attribute) plan.output().apply(i)).name();
    }
    return names;
  }

  /** The rows of a scan under filters on partitions alone. */
  private static long rowsOf(LogicalPlan plan, boolean isMarked) {
    List filters = new ArrayList();
    List others = new ArrayList();
    LogicalPlan scan = plan;
    while (scan instanceof Project) {
      scan = ((Project) scan).child();
    }
    if (scan instanceof Filter) {
      Expression condition = ((Filter) scan).condition();
      LogFileIndex index = indexOf(((Filter) scan).child());
      if (index == null || hasPlan(condition) || !condition.deterministic()) {
        return -1;
      }
      split(condition, index, filters, others);
      scan = ((Filter) scan).child();
    }
    LogFileIndex index = indexOf(scan);
    return index == null || !others.isEmpty() || index.isMarked() != isMarked ? -1 : index.countRows(toSeq(filters));
  }

  private static LogFileIndex indexOf(LogicalPlan plan) {
    if (!(plan instanceof LogicalRelation) || !(((LogicalRelation) plan).relation() instanceof HadoopFsRelation)) {
      return null;
    }
    Object location = ((HadoopFsRelation) ((LogicalRelation) plan).relation()).location();
    return location instanceof LogFileIndex ? (LogFileIndex) location : null;
  }

  private static scala.collection.immutable.Seq toSeq(List list) {
    return scala.jdk.javaapi.CollectionConverters.asScala(list).toSeq();
  }
}
