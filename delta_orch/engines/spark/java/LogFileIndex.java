// Compiled inside the driver's JVM by Janino (see `classic.py`): raw types only, no lambdas.
package delta_orch.spark;

import java.io.ByteArrayOutputStream;
import java.math.BigDecimal;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Function;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.BoundReference;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.InterpretedPredicate;
import org.apache.spark.sql.execution.datasources.FileIndex;
import org.apache.spark.sql.execution.datasources.FileStatusWithMetadata;
import org.apache.spark.sql.execution.datasources.PartitionDirectory;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;
import org.slf4j.LoggerFactory;
import py4j.Py4JNetworkException;

/**
 * The files of one scan, as the table's log names them: Spark lists nothing and parses no directory name.
 *
 * Spark does not evaluate partition predicates again after the scan, so `listFiles` must apply them exactly.
 */
public final class LogFileIndex implements FileIndex {
  private static final String NULL_FIELD = "\\N";

  /** As in `paths.py`: `time=03:06/x` begins with no scheme. */
  private static final java.util.regex.Pattern SCHEME = java.util.regex.Pattern.compile("[A-Za-z][A-Za-z0-9+.-]*:");

  private final Path root;
  private final StructType partitionSchema;
  private final InternalRow[] partitions;
  private final FileStatus[][] files;
  private final int[][] ordinals;
  private Function skipping;
  private final long sizeInBytes;

  /**
   * @param rootUri the table's directory, URI-encoded
   * @param partitionRows one line a partition: the values in Catalyst's own representation, separated by tabs, with
   *     backslash escapes and \N for null
   * @param fileRows one line a file: index of its partition, size, modification time, path as in the log, tab-separated
   */
  public LogFileIndex(String rootUri, StructType partitionSchema, String partitionRows, String fileRows)
      throws Exception {
    this.root = new Path(new URI(rootUri));
    this.partitionSchema = partitionSchema;
    this.partitions = parsePartitions(partitionRows, partitionSchema);
    List[] found = new List[partitions.length];
    List[] numbers = new List[partitions.length];
    int number = 0;
    long total = 0;
    int start = 0;
    while (start < fileRows.length()) {
      int end = fileRows.indexOf('\n', start);
      if (end < 0) {
        end = fileRows.length();
      }
      int first = fileRows.indexOf('\t', start);
      int second = fileRows.indexOf('\t', first + 1);
      int third = fileRows.indexOf('\t', second + 1);
      int partition = Integer.parseInt(fileRows.substring(start, first));
      long size = Long.parseLong(fileRows.substring(first + 1, second));
      long modificationTime = Long.parseLong(fileRows.substring(second + 1, third));
      Path path = resolve(fileRows.substring(third + 1, end));
      if (found[partition] == null) {
        found[partition] = new ArrayList();
        numbers[partition] = new ArrayList();
      }
      numbers[partition].add(Integer.valueOf(number++));
      found[partition].add(new FileStatus(size, false, 1, 128L << 20, modificationTime, path));
      total += size;
      start = end + 1;
    }
    this.files = new FileStatus[partitions.length][];
    this.ordinals = new int[partitions.length][];
    for (int i = 0; i < partitions.length; i++) {
      List some = found[i] == null ? new ArrayList() : found[i];
      this.files[i] = (FileStatus[]) some.toArray(new FileStatus[0]);
      this.ordinals[i] = new int[some.size()];
      for (int j = 0; j < some.size(); j++) {
        this.ordinals[i][j] = ((Integer) numbers[i].get(j)).intValue();
      }
    }
    this.sizeInBytes = total;
  }

  /**
   * @param function takes the text of filters (`FilterText`) and gives one bit a file, not set where the file holds no
   *     row for which they are true, or null
   */
  public void skipWith(Function function) {
    this.skipping = function;
  }

  /** A path of the log: URI-encoded once; relative to the root, absolute, or a URI. */
  private Path resolve(String logPath) throws Exception {
    int colon = logPath.indexOf(':');
    int slash = logPath.indexOf('/');
    URI base = root.toUri();
    if (SCHEME.matcher(logPath).lookingAt()) {
      String scheme = logPath.substring(0, colon);
      String rest = logPath.substring(colon + 1);
      if (!rest.startsWith("//")) {
        return new Path(scheme, "", decode(rest));
      }
      int end = rest.indexOf('/', 2);
      return new Path(scheme, rest.substring(2, end < 0 ? rest.length() : end), end < 0 ? "/" : decode(rest.substring(end)));
    }
    if (slash == 0) {
      return new Path(base.getScheme(), base.getAuthority(), decode(logPath));
    }
    String parent = base.getPath();
    String separator = parent.endsWith("/") ? "" : "/";
    return new Path(base.getScheme(), base.getAuthority(), parent + separator + decode(logPath));
  }

  private static String decode(String text) {
    if (text.indexOf('%') < 0) {
      return text;
    }
    ByteArrayOutputStream out = new ByteArrayOutputStream(text.length());
    byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
    for (int i = 0; i < bytes.length; i++) {
      int high = bytes[i] == '%' && i + 2 < bytes.length ? Character.digit((char) bytes[i + 1], 16) : -1;
      int low = high >= 0 ? Character.digit((char) bytes[i + 2], 16) : -1;
      if (low >= 0) {
        out.write(high * 16 + low);
        i += 2;
      } else {
        out.write(bytes[i]);
      }
    }
    return new String(out.toByteArray(), StandardCharsets.UTF_8);
  }

  private static InternalRow[] parsePartitions(String text, StructType schema) {
    if (schema.length() == 0) {
      return new InternalRow[] {new GenericInternalRow(new Object[0])};
    }
    if (text.isEmpty()) {
      return new InternalRow[0];
    }
    String[] lines = text.split("\n", -1);
    InternalRow[] rows = new InternalRow[lines.length];
    for (int i = 0; i < lines.length; i++) {
      String[] fields = lines[i].split("\t", -1);
      Object[] values = new Object[fields.length];
      for (int j = 0; j < fields.length; j++) {
        values[j] = NULL_FIELD.equals(fields[j]) ? null : catalystValue(unescape(fields[j]), schema.apply(j).dataType());
      }
      rows[i] = new GenericInternalRow(values);
    }
    return rows;
  }

  private static String unescape(String field) {
    if (field.indexOf('\\') < 0) {
      return field;
    }
    StringBuilder out = new StringBuilder(field.length());
    for (int i = 0; i < field.length(); i++) {
      char c = field.charAt(i);
      if (c == '\\') {
        char next = field.charAt(++i);
        c = next == 't' ? '\t' : next == 'n' ? '\n' : next;
      }
      out.append(c);
    }
    return out.toString();
  }

  private static Object catalystValue(String text, DataType type) {
    String name = type.typeName();
    if (type instanceof DecimalType) {
      DecimalType decimal = (DecimalType) type;
      return Decimal.apply(new BigDecimal(text), decimal.precision(), decimal.scale());
    }
    if (name.equals("integer") || name.equals("date")) {
      return Integer.valueOf(text);
    }
    if (name.equals("long") || name.equals("timestamp") || name.equals("timestamp_ntz")) {
      return Long.valueOf(text);
    }
    if (name.equals("short")) {
      return Short.valueOf(text);
    }
    if (name.equals("byte")) {
      return Byte.valueOf(text);
    }
    if (name.equals("double")) {
      return Double.valueOf(text);
    }
    if (name.equals("float")) {
      return Float.valueOf(text);
    }
    if (name.equals("boolean")) {
      return Boolean.valueOf(text);
    }
    if (name.equals("binary")) {
      return Base64.getDecoder().decode(text);
    }
    if (name.startsWith("string")) {
      return UTF8String.fromString(text);
    }
    throw new IllegalArgumentException("no partition value of type " + name);
  }

  public scala.collection.immutable.Seq listFiles(
      scala.collection.immutable.Seq partitionFilters, scala.collection.immutable.Seq dataFilters) {
    InterpretedPredicate[] predicates = bind(partitionFilters);
    byte[] kept = keptFiles(dataFilters);
    List directories = new ArrayList();
    for (int i = 0; i < partitions.length; i++) {
      if (files[i].length > 0 && keeps(predicates, partitions[i])) {
        List some = keptOf(i, kept);
        if (!some.isEmpty()) {
          directories.add(new PartitionDirectory(partitions[i], withMetadata(some)));
        }
      }
    }
    return toSeq(directories);
  }

  /** One bit a file; null where all are to be read. */
  private byte[] keptFiles(scala.collection.immutable.Seq dataFilters) {
    if (skipping == null || dataFilters.isEmpty()) {
      return null;
    }
    try {
      String text = FilterText.of(dataFilters);
      return text == null ? null : (byte[]) skipping.apply(text);
    } catch (Py4JNetworkException e) {
      // Python is about to leave, or has left. Skipping is no more than quicker.
      LoggerFactory.getLogger(LogFileIndex.class).warn("All files of {} are read: {}", root, e.toString());
      return null;
    } catch (Exception e) {
      throw e instanceof RuntimeException ? (RuntimeException) e : new RuntimeException(e);
    }
  }

  private List keptOf(int partition, byte[] kept) {
    List some = new ArrayList();
    for (int j = 0; j < files[partition].length; j++) {
      int ordinal = ordinals[partition][j];
      if (kept == null || (kept[ordinal >> 3] >> (ordinal & 7) & 1) == 1) {
        some.add(files[partition][j]);
      }
    }
    return some;
  }

  private static boolean keeps(InterpretedPredicate[] predicates, InternalRow row) {
    for (int i = 0; i < predicates.length; i++) {
      if (!predicates[i].eval(row)) {
        return false;
      }
    }
    return true;
  }

  private InterpretedPredicate[] bind(scala.collection.immutable.Seq filters) {
    InterpretedPredicate[] bound = new InterpretedPredicate[filters.length()];
    Binder binder = new Binder(partitionSchema);
    for (int i = 0; i < bound.length; i++) {
      Expression filter = (Expression) filters.apply(i);
      bound[i] = new InterpretedPredicate((Expression) filter.transform(binder));
      bound[i].initialize(0);
    }
    return bound;
  }

  /** Turns references to partition columns into positions in the row of partition values. */
  private static final class Binder extends scala.runtime.AbstractPartialFunction {
    private final Map ordinals = new HashMap();
    private final StructType schema;

    Binder(StructType schema) {
      this.schema = schema;
      for (int i = 0; i < schema.length(); i++) {
        ordinals.put(schema.apply(i).name().toLowerCase(java.util.Locale.ROOT), Integer.valueOf(i));
      }
    }

    public boolean isDefinedAt(Object node) {
      return node instanceof AttributeReference;
    }

    public Object applyOrElse(Object node, scala.Function1 otherwise) {
      if (!(node instanceof AttributeReference)) {
        return otherwise.apply(node);
      }
      String name = ((AttributeReference) node).name();
      Integer ordinal = (Integer) ordinals.get(name.toLowerCase(java.util.Locale.ROOT));
      if (ordinal == null) {
        throw new IllegalStateException("partition filter on " + name + ", which is no partition column");
      }
      return new BoundReference(ordinal.intValue(), schema.apply(ordinal.intValue()).dataType(), true);
    }
  }

  private static scala.collection.immutable.Seq withMetadata(List statuses) {
    List wrapped = new ArrayList(statuses.size());
    for (int i = 0; i < statuses.size(); i++) {
      FileStatus status = (FileStatus) statuses.get(i);
      wrapped.add(new FileStatusWithMetadata(status, scala.collection.immutable.Map$.MODULE$.empty()));
    }
    return toSeq(wrapped);
  }

  private static scala.collection.immutable.Seq toSeq(List list) {
    return scala.jdk.javaapi.CollectionConverters.asScala(list).toSeq();
  }

  public scala.collection.immutable.Seq rootPaths() {
    List one = new ArrayList();
    one.add(root);
    return toSeq(one);
  }

  public String[] inputFiles() {
    List names = new ArrayList();
    for (int i = 0; i < files.length; i++) {
      for (int j = 0; j < files[i].length; j++) {
        names.add(files[i][j].getPath().toUri().toString());
      }
    }
    return (String[]) names.toArray(new String[0]);
  }

  public void refresh() {}

  public long sizeInBytes() {
    return sizeInBytes;
  }

  public StructType partitionSchema() {
    return partitionSchema;
  }

  public boolean isTimeTravel() {
    return false;
  }

  public scala.Option metadataOpsTimeNs() {
    return scala.Option.empty();
  }
}
