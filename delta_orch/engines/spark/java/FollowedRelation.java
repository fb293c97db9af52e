// Compiled inside the driver's JVM by Janino (see `classic.py`): raw types only, no lambdas.
package delta_orch.spark;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.WeakHashMap;
import java.util.function.Function;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.SQLContext;
import org.apache.spark.sql.catalyst.QueryPlanningTracker;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import org.apache.spark.sql.sources.BaseRelation;
import org.apache.spark.sql.sources.TableScan;
import org.apache.spark.sql.types.StructType;

/**
 * A table at whatever version is the newest when a query is optimized. `LogPlanning` puts the scan of that version in
 * its place, the same for all parts of the query.
 */
public final class FollowedRelation extends BaseRelation implements TableScan {
  /** The queries in progress, numbered. A query is known by its tracker. */
  private static final Map QUERIES = new WeakHashMap();

  private static long numQueries = 0;

  private final SparkSession session;
  private final StructType schema;
  private Function newest;

  public FollowedRelation(SparkSession session, StructType schema) {
    this.session = session;
    this.schema = schema;
  }

  /**
   * @param function takes the number of a query, and gives the rows of the newest version as a `Dataset`, or a text that
   *     says why it cannot
   */
  public void readBy(Function function) {
    this.newest = function;
  }

  public SQLContext sqlContext() {
    return session.sqlContext();
  }

  public StructType schema() {
    return schema;
  }

  public RDD buildScan() {
    throw new UnsupportedOperationException(
        "delta_orch: this session cannot follow the table. Call to_spark(spark, follow=True) with this session");
  }

  /** The plan with scans of the newest versions in the place of followed tables; the plan itself if it has none. */
  public static LogicalPlan settled(LogicalPlan plan) {
    return (LogicalPlan) plan.transformWithSubqueries(new Settling(query()));
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

    Settling(String query) {
      this.query = query;
    }

    public boolean isDefinedAt(Object node) {
      return node instanceof LogicalRelation && ((LogicalRelation) node).relation() instanceof FollowedRelation;
    }

    public Object applyOrElse(Object node, scala.Function1 otherwise) {
      if (!isDefinedAt(node)) {
        return otherwise.apply(node);
      }
      FollowedRelation relation = (FollowedRelation) ((LogicalRelation) node).relation();
      return renamed(relation.rows(query), ((LogicalRelation) node).output());
    }
  }

  private LogicalPlan rows(String query) {
    // Making a DataFrame makes its session the active one.
    scala.Option active = SparkSession.getActiveSession();
    Object answer;
    try {
      answer = newest.apply(query);
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
    return new Project(scala.jdk.javaapi.CollectionConverters.asScala(columns).toSeq(), rows);
  }
}
