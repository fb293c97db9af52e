// Compiled inside the driver's JVM by Janino (see `classic.py`): raw types only, no lambdas.
package delta_orch.spark;

import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.IsNotNull;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.PlanExpression;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateExpression;
import org.apache.spark.sql.catalyst.expressions.aggregate.Count;
import org.apache.spark.sql.catalyst.expressions.aggregate.Max;
import org.apache.spark.sql.catalyst.expressions.aggregate.Min;
import org.apache.spark.sql.catalyst.plans.LeftAnti$;
import org.apache.spark.sql.catalyst.plans.logical.Aggregate;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.GlobalLimit;
import org.apache.spark.sql.catalyst.plans.logical.Join;
import org.apache.spark.sql.catalyst.plans.logical.LocalLimit;
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
    LogicalPlan settled = FollowedRelation.planned((LogicalPlan) plan);
    if (settled != plan) {
      // What was pushed down to a followed table is to reach the scan in its place. This rule runs, too.
      return SparkSession.active().sessionState().optimizer().execute(settled);
    }
    return plan.transform(new Step());
  }

  private static final class Step extends scala.runtime.AbstractPartialFunction {
    public boolean isDefinedAt(Object node) {
      return node instanceof Aggregate || node instanceof Filter || node instanceof GlobalLimit;
    }

    public Object applyOrElse(Object node, scala.Function1 otherwise) {
      Object changed = null;
      if (node instanceof Aggregate) {
        changed = answered((Aggregate) node);
      } else if (node instanceof GlobalLimit) {
        changed = limited((GlobalLimit) node);
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
    List ofPartitions = new ArrayList();
    List ofData = new ArrayList();
    split(filter.condition(), index, ofPartitions, ofData);
    LogFileIndex narrowed = index.narrowed(toSeq(ofPartitions), toSeq(ofData));
    return narrowed == index ? null : over(filter, (LogicalRelation) filter.child(), narrowed);
  }

  /** The limit over a relation of the first files that have enough rows; null where nothing changes. */
  private static LogicalPlan limited(GlobalLimit limit) {
    if (!(limit.child() instanceof LocalLimit) || !(limit.limitExpr() instanceof Literal)) {
      return null;
    }
    LogicalPlan child = (LogicalPlan) ((LocalLimit) limit.child()).child();
    LogicalPlan scan = child instanceof Project ? ((Project) child).child() : child;
    LogFileIndex index = indexOf(scan);
    LogFileIndex fewer =
        index == null ? null : index.limited(((Integer) ((Literal) limit.limitExpr()).value()).intValue());
    return fewer == null ? null : with(limit, with(limit.child(), over(child, (LogicalRelation) scan, fewer)));
  }

  /** A plan with another child. */
  private static LogicalPlan with(Object plan, LogicalPlan child) {
    List children = new ArrayList();
    children.add(child);
    return (LogicalPlan) ((LogicalPlan) plan).withNewChildren(toSeq(children));
  }

  /** A plan, or its only child, over other files. */
  private static LogicalPlan over(LogicalPlan plan, LogicalRelation relation, LogFileIndex index) {
    HadoopFsRelation files = (HadoopFsRelation) relation.relation();
    HadoopFsRelation fewer =
        new HadoopFsRelation(
            index,
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
      return plan == relation ? changed : with(plan, changed);
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

  /** Counts, minima and maxima without groups, as the values they are; null where the log does not know all. */
  private static LogicalPlan answered(Aggregate aggregate) {
    scala.collection.immutable.Seq wanted = aggregate.aggregateExpressions();
    if (aggregate.groupingExpressions().nonEmpty() || aggregate.isStreaming() || wanted.isEmpty()) {
      return null;
    }
    AggregateExpression[] calls = new AggregateExpression[wanted.length()];
    for (int i = 0; i < calls.length; i++) {
      calls[i] = callIn((Expression) wanted.apply(i));
      if (calls[i] == null) {
        return null;
      }
    }
    List columns = new ArrayList();
    for (int i = 0; i < calls.length; i++) {
      Expression argument = (Expression) calls[i].aggregateFunction().children().apply(0);
      Literal value;
      if (calls[i].aggregateFunction() instanceof Count) {
        long rows = rows(aggregate.child());
        value = rows < 0 ? null : new Literal(Long.valueOf(rows), LongType$.MODULE$);
      } else {
        Object found =
            extreme((AttributeReference) argument, aggregate.child(), calls[i].aggregateFunction() instanceof Max);
        value = found == LogFileIndex.UNKNOWN ? null : new Literal(found, argument.dataType());
      }
      if (value == null) {
        return null;
      }
      List children = new ArrayList();
      children.add(value);
      columns.add(((TreeNode) wanted.apply(i)).withNewChildren(toSeq(children)));
    }
    return new Project(toSeq(columns), new OneRowRelation());
  }

  /** The call in `count(*) AS x`, `min(a) AS x` or `max(a) AS x`; null for others. */
  private static AggregateExpression callIn(Expression column) {
    if (column.children().length() != 1 || !(column.children().apply(0) instanceof AggregateExpression)) {
      return null;
    }
    AggregateExpression call = (AggregateExpression) column.children().apply(0);
    if (call.filter().isDefined()) {
      return null;
    }
    scala.collection.immutable.Seq values = call.aggregateFunction().children();
    if (call.aggregateFunction() instanceof Min || call.aggregateFunction() instanceof Max) {
      return values.apply(0) instanceof AttributeReference ? call : null;
    }
    if (call.isDistinct() || !(call.aggregateFunction() instanceof Count)) {
      return null;
    }
    for (int i = 0; i < values.length(); i++) {
      if (!(values.apply(i) instanceof Literal) || ((Literal) values.apply(i)).value() == null) {
        return null;
      }
    }
    return call;
  }

  /** The extreme of a column of a scan without deletion vectors, under filters on partitions alone. */
  private static Object extreme(AttributeReference column, LogicalPlan plan, boolean isGreatest) {
    AttributeReference stored = column;
    LogicalPlan scan = plan;
    List filters = new ArrayList();
    while (scan instanceof Project || scan instanceof Filter) {
      if (scan instanceof Project) {
        stored = storedIn((Project) scan, stored);
        if (stored == null) {
          return LogFileIndex.UNKNOWN;
        }
        scan = ((Project) scan).child();
        continue;
      }
      Filter filter = (Filter) scan;
      scan = filter.child();
      List others = new ArrayList();
      LogFileIndex filtered = indexOf(scan);
      // What the optimizer adds of itself, `isnotnull(a)` over a minimum of `a`, leaves out no value.
      if (filtered == null || !splitAll(filter.condition(), filtered, filters, others)) {
        return LogFileIndex.UNKNOWN;
      }
      for (int i = 0; i < others.size(); i++) {
        Expression other = (Expression) others.get(i);
        if (!(other instanceof IsNotNull)
            || !(other.children().apply(0) instanceof AttributeReference)
            || !((AttributeReference) other.children().apply(0)).exprId().equals(stored.exprId())) {
          return LogFileIndex.UNKNOWN;
        }
      }
    }
    LogFileIndex index = indexOf(scan);
    return index == null || index.isMarked()
        ? LogFileIndex.UNKNOWN
        : index.extreme(stored.name(), stored.dataType(), toSeq(filters), isGreatest);
  }

  /** The column below a projection that is passed on unchanged; null where it is computed. */
  private static AttributeReference storedIn(Project project, AttributeReference column) {
    for (int i = 0; i < project.projectList().length(); i++) {
      Expression item = (Expression) project.projectList().apply(i);
      if (!((NamedExpression) item).exprId().equals(column.exprId())) {
        continue;
      }
      Object value = item instanceof Alias ? ((Alias) item).child() : item;
      return value instanceof AttributeReference ? (AttributeReference) value : null;
    }
    return null;
  }

  /** As `split`; whether nothing in the condition was passed over. */
  private static boolean splitAll(Expression condition, LogFileIndex index, List ofPartitions, List ofData) {
    if (hasPlan(condition) || !condition.deterministic()) {
      return false;
    }
    split(condition, index, ofPartitions, ofData);
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
      if (index == null || !splitAll(condition, index, filters, others)) {
        return -1;
      }
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
