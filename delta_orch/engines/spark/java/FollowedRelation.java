// Compiled inside the driver's JVM by Janino (see `classic.py`): raw types only, no lambdas.
package delta_orch.spark;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.WeakHashMap;
import java.util.function.Function;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.SQLContext;
import org.apache.spark.sql.catalyst.QueryPlanningTracker;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.LocalLimit;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import org.apache.spark.sql.sources.BaseRelation;
import org.apache.spark.sql.sources.TableScan;
import org.apache.spark.sql.types.StructType;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Rows that are planned when a query is optimized: those of a table at whatever version is the newest then, the same for
 * all parts of the query, or those of one version, of which only the files are listed that the filters over it leave.
 * `LogPlanning` puts the scan in its place.
 */
public final class FollowedRelation extends BaseRelation implements TableScan {
  /** The queries in progress, numbered. A query is known by its tracker. */
  private static final Map QUERIES = new WeakHashMap();

  private static long numQueries = 0;

  private static final String LIMIT = "limit ";

  private final SparkSession session;
  private final StructType schema;
  private final boolean isOfOneVersion;
  private Function reader;

  public FollowedRelation(SparkSession session, StructType schema, Boolean isOfOneVersion) {
    this.session = session;
    this.schema = schema;
    this.isOfOneVersion = isOfOneVersion.booleanValue();
  }

  /**
   * @param function takes the number of a query, or, for rows of one version, the text of filters (`FilterText`; empty
   *     for none), or `LIMIT` and a number of rows, of which any will do. It gives the rows as a `Dataset`, or a text that says why it cannot
   */
  public void readBy(Function function) {
    this.reader = function;
  }

  public SQLContext sqlContext() {
    return session.sqlContext();
  }

  public StructType schema() {
    return schema;
  }

  public RDD buildScan() {
    throw new UnsupportedOperationException(
        "delta_orch: this session cannot "
            + (isOfOneVersion
                ? "plan the table. Call to_spark(spark) with this session"
                : "follow the table. Call to_spark(spark, follow=True) with this session"));
  }

  /** The plan with scans of the newest versions in the place of followed tables; the plan itself if it has none. */
  public static LogicalPlan settled(LogicalPlan plan) {
    return (LogicalPlan) plan.transformWithSubqueries(new Settling(query(), false));
  }

  /** As `settled`, of an optimized plan, in which rows of one version give way to a scan, too. */
  public static LogicalPlan planned(LogicalPlan plan) {
    return (LogicalPlan) plan.transformWithSubqueries(new Settling(query(), true));
  }

  private static synchronized String query() {
    scala.Option tracker = QueryPlanningTracker.get();
    if (tracker.isEmpty()) {
      return Long.toString(++numQueries);
    }
    Object number = QUERIES.get(tracker.get());
    if (number == null) {
      number = Long.toString(++numQueries);
      QUERIES.put(tracker.get(), number);
    }
    return (String) number;
  }

  private static final class Settling extends scala.runtime.AbstractPartialFunction {
    private final String query;
    private final boolean isOptimized;

    Settling(String query, boolean isOptimized) {
      this.query = query;
      this.isOptimized = isOptimized;
    }

    public boolean isDefinedAt(Object node) {
      FollowedRelation relation = relationIn(node);
      if (relation == null && isOptimized) {
        // Nodes above are visited first. What is left below them has no filter and no limit.
        relation = relationIn(node instanceof Filter ? ((Filter) node).child() : belowLimit(node));
        return relation != null && relation.isOfOneVersion;
      }
      return relation != null && (isOptimized || !relation.isOfOneVersion);
    }

    public Object applyOrElse(Object node, scala.Function1 otherwise) {
      if (!isDefinedAt(node)) {
        return otherwise.apply(node);
      }
      if (node instanceof Filter) {
        Filter filter = (Filter) node;
        LogicalPlan rows = rowsOf((LogicalRelation) filter.child(), text(filter.condition()));
        return with(filter, rows);
      }
      if (node instanceof LocalLimit) {
        LogicalPlan child = (LogicalPlan) ((LocalLimit) node).child();
        LogicalPlan rows = rowsOf((LogicalRelation) belowLimit(node), LIMIT + ((LocalLimit) node).limitExpr().toString());
        return with((LogicalPlan) node, child instanceof Project ? with(child, rows) : rows);
      }
      LogicalRelation relation = (LogicalRelation) node;
      return rowsOf(relation, ((FollowedRelation) relation.relation()).isOfOneVersion ? "" : query);
    }

    /** The rows of which a limit takes the first, whatever they are; null where it does not. */
    private static Object belowLimit(Object node) {
      if (!(node instanceof LocalLimit) || !(((LocalLimit) node).limitExpr() instanceof Literal)) {
        return null;
      }
      Object child = ((LocalLimit) node).child();
      return child instanceof Project ? ((Project) child).child() : child;
    }

    private static LogicalPlan with(LogicalPlan plan, LogicalPlan child) {
      return (LogicalPlan) plan.withNewChildren(CollectionConverters.asScala(Collections.singletonList(child)).toSeq());
    }

    private static String text(Expression condition) {
      try {
        String found = FilterText.of(CollectionConverters.asScala(Collections.singletonList(condition)).toSeq());
        return found == null ? "" : found;
      } catch (Exception e) {
        throw new IllegalStateException(e);
      }
    }

    private static FollowedRelation relationIn(Object node) {
      Object relation = node instanceof LogicalRelation ? ((LogicalRelation) node).relation() : null;
      return relation instanceof FollowedRelation ? (FollowedRelation) relation : null;
    }

    private static LogicalPlan rowsOf(LogicalRelation relation, String asked) {
      return renamed(((FollowedRelation) relation.relation()).rows(asked), relation.output());
    }
  }

  private LogicalPlan rows(String asked) {
    // Making a DataFrame makes its session the active one.
    scala.Option active = SparkSession.getActiveSession();
    Object answer;
    try {
      answer = reader.apply(asked);
    } finally {
      if (active.isDefined()) {
        SparkSession.setActiveSession((SparkSession) active.get());
      } else {
        SparkSession.clearActiveSession();
      }
    }
    if (answer instanceof String) {
      throw new IllegalArgumentException("[delta_orch error] " + answer);
    }
    return ((Dataset) answer).queryExecution().analyzed();
  }

  /** The rows under the ids that the columns had: both are in the same order. */
  private static LogicalPlan renamed(LogicalPlan rows, scala.collection.immutable.Seq output) {
    List columns = new ArrayList();
    for (int i = 0; i < output.length(); i++) {
      Attribute wanted = (Attribute) output.apply(i);
      Attribute found = (Attribute) rows.output().apply(i);
      columns.add(
          new Alias(
              found,
              wanted.name(),
              wanted.exprId(),
              wanted.qualifier(),
              scala.Option.apply(wanted.metadata()),
              scala.collection.immutable.Nil$.MODULE$));
    }
    return new Project(CollectionConverters.asScala(columns).toSeq(), rows);
  }
}
