// Compiled inside the driver's JVM by Janino (see `classic.py`): raw types only, no lambdas.
package delta_orch.spark;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.fs.Path;
import org.apache.spark.internal.io.FileCommitProtocol;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.SQLExecution;
import org.apache.spark.sql.execution.SQLExecution$;
import org.apache.spark.sql.execution.datasources.FileFormatWriter;
import org.apache.spark.sql.execution.datasources.FileFormatWriter$;
import org.apache.spark.sql.execution.datasources.FileIndex;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat;
import org.apache.spark.sql.execution.streaming.ManifestFileCommitProtocol;
import ${SINK_PACKAGE}.FileStreamSinkLog;
import ${SINK_PACKAGE}.SinkFileStatus;
import org.apache.spark.sql.types.StructType;

/** What Python needs of the JVM, each in one call. */
public final class Bridge {
  private final Map pinned = new java.util.HashMap();

  /**
   * A session with the user's settings as they are now, except those given: what a write needs pinned never shows in
   * the user's own session. One is kept for each set of settings until the user changes his own.
   *
   * In everything else it is the user's session: what runs in it is told to his listeners and observations, carries his
   * tags, and stops when he interrupts it.
   */
  public synchronized SparkSession pinnedSession(SparkSession user, String settings) throws Exception {
    Map now = scala.jdk.javaapi.CollectionConverters.asJava(user.sessionState().conf().getAllConfs());
    Object[] found = (Object[]) pinned.get(settings);
    if (found == null || !now.equals(found[0])) {
      SparkSession clone = user.cloneSession();
      java.util.Iterator entries = toMap(settings).entrySet().iterator();
      while (entries.hasNext()) {
        Map.Entry entry = (Map.Entry) entries.next();
        clone.sessionState().conf().setConfString((String) entry.getKey(), (String) entry.getValue());
      }
      // Spark tells a listener of the executions of its session, which it knows by this name.
      share("sessionUUID", user, clone);
      share("observationManager", user, clone);
      user.managedJobTags();
      clone.managedJobTags();
      share("managedJobTags", user, clone);
      // The user's own listeners hear of them now; copies would hear of them twice.
      clone.listenerManager().clear();
      found = new Object[] {new java.util.HashMap(now), clone};
      pinned.put(settings, found);
    }
    return (SparkSession) found[1];
  }

  private static void share(String name, SparkSession from, SparkSession to) throws Exception {
    java.lang.reflect.Field field = SparkSession.class.getDeclaredField(name);
    field.setAccessible(true);
    field.set(to, field.get(from));
  }

  /** The same rows, to be planned and run by another session. */
  public Dataset rehome(Dataset rows, SparkSession session) {
    return Dataset.ofRows(session, rows.queryExecution().analyzed());
  }

  /**
   * The rows of the files of one version of a table.
   *
   * @param reader the session whose settings say how files are read
   */
  public Dataset scan(SparkSession session, SparkSession reader, FileIndex index, StructType dataSchema, String options) {
    HadoopFsRelation relation =
        new HadoopFsRelation(
            index,
            index.partitionSchema(),
            dataSchema,
            scala.Option.empty(),
            new ParquetFileFormat(),
            toScala(toMap(options)),
            reader);
    return session.baseRelationToDataFrame(relation);
  }

  /**
   * Writes rows as Parquet files straight to their final place below `directory`.
   *
   * Spark's manifest committer reports the files of the task attempts that count; others may stay behind, unnamed.
   *
   * @return one line a file: its path below `directory`, not encoded
   */
  public String write(Dataset rows, String directory, String[] partitionColumns, String options) throws Throwable {
    SparkSession session = (SparkSession) rows.sparkSession();
    QueryExecution execution = rows.queryExecution();
    Manifest manifest = Manifest.create(session);
    SQLExecution.withNewExecutionId(
        execution,
        scala.Option.apply("delta_orch write"),
        new Write(session, execution, directory, partitionColumns, toMap(options), manifest));
    StringBuilder out = new StringBuilder();
    String root = new Path(new java.net.URI(directory)).toUri().getPath() + "/";
    for (int i = 0; i < manifest.files.size(); i++) {
      SinkFileStatus file = (SinkFileStatus) manifest.files.get(i);
      String path = new java.net.URI(file.path()).getPath();
      if (!path.startsWith(root)) {
        throw new IllegalStateException("Spark wrote " + path + ", outside " + root);
      }
      out.append(path.substring(root.length())).append('\n');
    }
    return out.toString();
  }

  /** Rows as Arrow batches, pulled by a thread that starts now: its jobs carry the tags of the session. */
  public Object stream(Dataset rows) {
    return SQLExecution$.MODULE$.withSessionTagsApplied((SparkSession) rows.sparkSession(), new Stream(rows));
  }

  private static final class Stream extends scala.runtime.AbstractFunction0 {
    private final Dataset rows;

    Stream(Dataset rows) {
      this.rows = rows;
    }

    public Object apply() {
      return org.apache.spark.api.python.PythonRDD.toLocalIteratorAndServe(rows.toArrowBatchRdd(), false);
    }
  }

  /** Keys and values in turn: as a map each of them would be a call from Python. */
  private static Map toMap(String pairs) {
    Map map = new java.util.HashMap();
    String[] parts = pairs.split("\u0000", -1);
    for (int i = 0; i + 1 < parts.length; i += 2) {
      map.put(parts[i], parts[i + 1]);
    }
    return map;
  }

  static scala.collection.immutable.Map toScala(Map map) {
    return scala.collection.immutable.Map$.MODULE$.from(scala.jdk.javaapi.CollectionConverters.asScala(map));
  }

  private static final class Write extends scala.runtime.AbstractFunction0 {
    private final SparkSession session;
    private final QueryExecution execution;
    private final String directory;
    private final String[] partitionColumns;
    private final Map options;
    private final Manifest manifest;

    Write(
        SparkSession session,
        QueryExecution execution,
        String directory,
        String[] partitionColumns,
        Map options,
        Manifest manifest) {
      this.session = session;
      this.execution = execution;
      this.directory = directory;
      this.partitionColumns = partitionColumns;
      this.options = options;
      this.manifest = manifest;
    }

    public Object apply() {
      try {
        return run();
      } catch (InvocationTargetException e) {
        throw rethrow(e.getCause());
      } catch (Exception e) {
        throw rethrow(e);
      }
    }

    private static RuntimeException rethrow(Throwable e) {
      return e instanceof RuntimeException ? (RuntimeException) e : new RuntimeException(e);
    }

    private Object run() throws Exception {
      String path = new Path(new java.net.URI(directory)).toString();
      ManifestFileCommitProtocol committer =
          new ManifestFileCommitProtocol(java.util.UUID.randomUUID().toString(), path);
      committer.setupManifestOptions(manifest, 0L);
      scala.collection.immutable.Seq output = execution.analyzed().output();
      List attributes = new ArrayList();
      for (int i = 0; i < partitionColumns.length; i++) {
        attributes.add(find(output, partitionColumns[i]));
      }
      Object[] known = {
        session,
        execution.executedPlan(),
        new ParquetFileFormat(),
        committer,
        new FileFormatWriter.OutputSpec(path, scala.collection.immutable.Map$.MODULE$.empty(), output),
        session.sessionState().newHadoopConfWithOptions(toScala(options)),
        toSeq(attributes),
        scala.Option.empty(),
        toSeq(Collections.emptyList()),
        toScala(options)
      };
      return invokeWrite(known);
    }

    /** Releases of Spark differ in how many defaulted parameters follow the ones given. */
    private static Object invokeWrite(Object[] known) throws Exception {
      Object module = FileFormatWriter$.MODULE$;
      Method[] methods = module.getClass().getMethods();
      for (int i = 0; i < methods.length; i++) {
        Method method = methods[i];
        int arity = method.getParameterTypes().length;
        if (method.getName().equals("write") && arity >= known.length) {
          Object[] arguments = new Object[arity];
          System.arraycopy(known, 0, arguments, 0, known.length);
          for (int j = known.length; j < arity; j++) {
            Method defaultValue = module.getClass().getMethod("write$default$" + (j + 1), new Class[0]);
            arguments[j] = defaultValue.invoke(module, new Object[0]);
          }
          return method.invoke(module, arguments);
        }
      }
      throw new NoSuchMethodException("FileFormatWriter.write");
    }

    private static Attribute find(scala.collection.immutable.Seq output, String name) {
      for (int i = 0; i < output.length(); i++) {
        Attribute attribute = (Attribute) output.apply(i);
        if (attribute.name().equals(name)) {
          return attribute;
        }
      }
      throw new IllegalArgumentException("no column " + name);
    }
  }

  static scala.collection.immutable.Seq toSeq(List list) {
    return scala.jdk.javaapi.CollectionConverters.asScala(list).toSeq();
  }

  /** Keeps in memory what the manifest committer would write to `_spark_metadata`. Lives on the driver only. */
  private static final class Manifest extends FileStreamSinkLog {
    final List files = new ArrayList();

    private Manifest(SparkSession session, String path) {
      super(FileStreamSinkLog.VERSION(), session, path, scala.Option.empty());
    }

    static Manifest create(SparkSession session) throws Exception {
      // The base class makes a directory it would log into.
      java.nio.file.Path scratch = Files.createTempDirectory("delta-orch-manifest", new java.nio.file.attribute.FileAttribute[0]);
      try {
        return new Manifest(session, scratch.toUri().toString());
      } finally {
        Files.deleteIfExists(scratch);
      }
    }

    public boolean add(long batchId, Object[] statuses) {
      for (int i = 0; i < statuses.length; i++) {
        files.add(statuses[i]);
      }
      return true;
    }
  }
}
