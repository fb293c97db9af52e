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
import org.apache.spark.sql.catalyst.util.TypeUtils;
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

  /** What `skipWith`'s function answers with the rows of each file, eight bytes each. */
  private static final String COUNTS = "";

  /** Before the name of a column: it answers with the column's extremes; see `extreme`. */
  private static final String EXTREMES = "=";

  /** What `extreme` gives if nobody knows. */
  public static final Object UNKNOWN = new Object();

  /** As in `paths.py`: `time=03:06/x` begins with no scheme. */
  private static final java.util.regex.Pattern SCHEME = java.util.regex.Pattern.compile("[A-Za-z][A-Za-z0-9+.-]*:");

  private final Path root;
  private final StructType partitionSchema;
  private final InternalRow[] partitions;
  private final byte[] text;
  private final int[] starts;
  private final int[] partitionOf;
  private final long[] sizes;
  private final LogFileIndex whole;
  private final boolean isMarked;
  private Function skipping;
  private final long sizeInBytes;
  private final int maxFiles;

  /**
   * @param rootUri the table's directory, URI-encoded
   * @param partitionRows one line a partition: the values in Catalyst's own representation, separated by tabs, with
   *     backslash escapes and \N for null
   * @param isMarked whether deletion vectors mark rows of the files: an anti-join leaves them out
   * @param fileRows one line a file: index of its partition, size, modification time, path as in the log, tab-separated
   */
  public LogFileIndex(String rootUri, StructType partitionSchema, String partitionRows, String fileRows, Boolean isMarked)
      throws Exception {
    this.root = new Path(new URI(rootUri));
    this.partitionSchema = partitionSchema;
    this.partitions = parsePartitions(partitionRows, partitionSchema);
    this.text = fileRows.getBytes(StandardCharsets.UTF_8);
    int count = 0;
    for (int i = 0; i < text.length; i++) {
      count += text[i] == '\n' ? 1 : 0;
    }
    int numFiles = text.length == 0 ? 0 : count + 1;
    this.starts = new int[numFiles + 1];
    this.partitionOf = new int[numFiles];
    this.sizes = new long[numFiles];
    long total = 0;
    int at = 0;
    for (int i = 0; i < numFiles; i++) {
      starts[i] = at;
      int tab = indexOf('\t', at);
      int next = indexOf('\t', tab + 1);
      partitionOf[i] = Integer.parseInt(text(at, tab));
      sizes[i] = Long.parseLong(text(tab + 1, next));
      total += sizes[i];
      at = indexOf('\n', next) + 1;
    }
    starts[numFiles] = text.length + 1;
    this.sizeInBytes = total;
    this.whole = this;
    this.isMarked = isMarked.booleanValue();
    this.maxFiles = numFiles;
  }

  /** The same files, of which a query reads so many bytes, and none after the first `maxFiles`. */
  private LogFileIndex(LogFileIndex whole, long sizeInBytes, int maxFiles) {
    this.maxFiles = maxFiles;
    this.root = whole.root;
    this.partitionSchema = whole.partitionSchema;
    this.partitions = whole.partitions;
    this.text = whole.text;
    this.starts = whole.starts;
    this.partitionOf = whole.partitionOf;
    this.sizes = whole.sizes;
    this.skipping = whole.skipping;
    this.isMarked = whole.isMarked;
    this.whole = whole;
    this.sizeInBytes = sizeInBytes;
  }

  /** Two scans of the same files may share what they read. */
  public boolean equals(Object other) {
    return other instanceof LogFileIndex
        && ((LogFileIndex) other).whole == whole
        && ((LogFileIndex) other).maxFiles == maxFiles
        && ((LogFileIndex) other).sizeInBytes == sizeInBytes;
  }

  public int hashCode() {
    return System.identityHashCode(whole);
  }

  private int indexOf(char c, int from) {
    int at = from;
    while (at < text.length && text[at] != c) {
      at++;
    }
    return at;
  }

  private String text(int start, int end) {
    return new String(text, start, end - start, StandardCharsets.UTF_8);
  }

  /** Only what a query reads becomes an object. */
  private FileStatus status(int file) throws Exception {
    int size = indexOf('\t', starts[file]) + 1;
    int time = indexOf('\t', size) + 1;
    int path = indexOf('\t', time) + 1;
    long modificationTime = Long.parseLong(text(time, path - 1));
    Path resolved = resolve(text(path, starts[file + 1] - 1));
    long bytes = sizes[file];
    if ("file".equals(resolved.toUri().getScheme())) {
      java.io.File found = new java.io.File(resolved.toUri().getPath());
      long length = found.length();
      if (length > 0) {
        // Spark passes over row groups behind the size that it is told.
        bytes = length;
      } else {
        ensureFile(found); // what is no file has no length
      }
    }
    return new FileStatus(bytes, false, 1, 128L << 20, modificationTime, resolved);
  }

  /** Refuses what Spark would wait for. `errors.py` reads the message. Nothing is said where nothing is there. */
  private static void ensureFile(java.io.File file) {
    if (!file.isFile() && !file.isDirectory() && file.exists()) {
      throw new IllegalArgumentException(
          "[delta_orch error] StorageError: Cannot read " + file + ": it is not a file, but a pipe, a device or a socket");
    }
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
    boolean[] wanted = wantedPartitions(partitionFilters);
    byte[] kept = keptFiles(dataFilters);
    List[] found = new List[partitions.length];
    try {
      for (int i = 0; i < maxFiles; i++) {
        if (isKept(wanted, kept, i)) {
          if (found[partitionOf[i]] == null) {
            found[partitionOf[i]] = new ArrayList();
          }
          found[partitionOf[i]].add(status(i));
        }
      }
    } catch (Exception e) {
      throw e instanceof RuntimeException ? (RuntimeException) e : new RuntimeException(e);
    }
    List directories = new ArrayList();
    for (int i = 0; i < partitions.length; i++) {
      if (found[i] != null) {
        directories.add(new PartitionDirectory(partitions[i], withMetadata(found[i])));
      }
    }
    return toSeq(directories);
  }

  private boolean isKept(boolean[] wanted, byte[] kept, int file) {
    return wanted[partitionOf[file]] && (kept == null || (kept[file >> 3] >> (file & 7) & 1) == 1);
  }

  private boolean[] wantedPartitions(scala.collection.immutable.Seq partitionFilters) {
    InterpretedPredicate[] predicates = bind(partitionFilters);
    boolean[] wanted = new boolean[partitions.length];
    for (int i = 0; i < partitions.length; i++) {
      wanted[i] = keeps(predicates, partitions[i]);
    }
    return wanted;
  }

  public boolean isMarked() {
    return isMarked;
  }

  /** For the planner: the same files, with the size of those that a query with these filters reads. */
  public LogFileIndex narrowed(
      scala.collection.immutable.Seq partitionFilters, scala.collection.immutable.Seq dataFilters) {
    if (whole != this) {
      return this;
    }
    boolean[] wanted = wantedPartitions(partitionFilters);
    byte[] kept = keptFiles(dataFilters);
    long total = 0;
    for (int i = 0; i < sizes.length; i++) {
      total += isKept(wanted, kept, i) ? sizes[i] : 0;
    }
    return total == sizeInBytes ? this : new LogFileIndex(this, total, maxFiles);
  }

  /** The first files that have so many rows together; null where nobody knows, or all are needed. */
  public LogFileIndex limited(int numRows) {
    java.nio.LongBuffer counts = whole == this && !isMarked ? counts() : null;
    if (counts == null) {
      return null;
    }
    long rows = 0;
    long bytes = 0;
    for (int i = 0; i < sizes.length - 1; i++) {
      rows += Math.max(counts.get(i), 0);
      bytes += sizes[i];
      if (rows >= numRows) {
        return new LogFileIndex(this, bytes, i + 1);
      }
    }
    return null;
  }

  /** The rows in the partitions for which the filters are true, without those marked as deleted; -1 if unknown. */
  public long countRows(scala.collection.immutable.Seq partitionFilters) {
    java.nio.LongBuffer counts = counts();
    if (counts == null) {
      return -1;
    }
    boolean[] wanted = wantedPartitions(partitionFilters);
    long total = 0;
    for (int i = 0; i < sizes.length; i++) {
      if (wanted[partitionOf[i]]) {
        if (counts.get(i) < 0) {
          return -1;
        }
        total += counts.get(i);
      }
    }
    return total;
  }

  /**
   * The smallest or greatest value of a column in the partitions for which the filters are true, as Catalyst has it:
   * null where there is none, `UNKNOWN` where the log does not say.
   */
  public Object extreme(String column, DataType type, scala.collection.immutable.Seq partitionFilters, boolean isGreatest) {
    int ordinal = -1;
    for (int j = 0; j < partitionSchema.length(); j++) {
      ordinal = partitionSchema.apply(j).name().equals(column) ? j : ordinal;
    }
    return ordinal < 0
        ? extremeOfData(column, type, partitionFilters, isGreatest)
        : extremeOfPartitions(ordinal, type, partitionFilters, isGreatest);
  }

  private Object extremeOfPartitions(
      int ordinal, DataType type, scala.collection.immutable.Seq partitionFilters, boolean isGreatest) {
    java.nio.LongBuffer counts = counts();
    if (counts == null || !partitionSchema.apply(ordinal).dataType().equals(type)) {
      return UNKNOWN;
    }
    boolean[] wanted = wantedPartitions(partitionFilters);
    boolean[] seen = new boolean[partitions.length];
    scala.math.Ordering order = TypeUtils.getInterpretedOrdering(type);
    Object best = null;
    for (int i = 0; i < sizes.length; i++) {
      int partition = partitionOf[i];
      if (!wanted[partition] || seen[partition] || counts.get(i) == 0) {
        continue;
      }
      if (counts.get(i) < 0) {
        return UNKNOWN;
      }
      seen[partition] = true;
      Object value = partitions[partition].isNullAt(ordinal) ? null : partitions[partition].get(ordinal, type);
      if (value != null && (best == null || order.compare(value, best) * (isGreatest ? 1 : -1) > 0)) {
        best = value;
      }
    }
    return best;
  }

  private Object extremeOfData(
      String column, DataType type, scala.collection.immutable.Seq partitionFilters, boolean isGreatest) {
    byte[] answer = ask(EXTREMES + column);
    if (answer == null) {
      return UNKNOWN;
    }
    // A byte a file: 0 if unknown, 1 if it has values, 2 if all are null. Then the smallest values, then the greatest.
    int n = sizes.length;
    java.nio.ByteBuffer values = java.nio.ByteBuffer.wrap(answer).order(java.nio.ByteOrder.LITTLE_ENDIAN);
    boolean[] wanted = wantedPartitions(partitionFilters);
    boolean any = false;
    long best = 0;
    for (int i = 0; i < n; i++) {
      if (!wanted[partitionOf[i]] || answer[i] == 2) {
        continue;
      }
      if (answer[i] != 1) {
        return UNKNOWN;
      }
      long value = values.getLong(n + 8 * (isGreatest ? n + i : i));
      best = !any ? value : isGreatest ? Math.max(best, value) : Math.min(best, value);
      any = true;
    }
    if (!any) {
      return null;
    }
    String name = type.typeName();
    if (name.equals("long")) {
      return Long.valueOf(best);
    }
    if (name.equals("integer") || name.equals("date")) {
      return best == (int) best ? Integer.valueOf((int) best) : UNKNOWN;
    }
    if (name.equals("short")) {
      return best == (short) best ? Short.valueOf((short) best) : UNKNOWN;
    }
    return name.equals("byte") && best == (byte) best ? Byte.valueOf((byte) best) : UNKNOWN;
  }

  private java.nio.LongBuffer counts() {
    byte[] counts = ask(COUNTS);
    return counts == null ? null : java.nio.ByteBuffer.wrap(counts).order(java.nio.ByteOrder.LITTLE_ENDIAN).asLongBuffer();
  }

  private byte[] ask(String text) {
    try {
      return skipping == null ? null : (byte[]) skipping.apply(text);
    } catch (Py4JNetworkException e) {
      return null;
    }
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
    String[] names = new String[sizes.length];
    try {
      for (int i = 0; i < names.length; i++) {
        names[i] = status(i).getPath().toUri().toString();
      }
    } catch (Exception e) {
      throw new RuntimeException(e);
    }
    return names;
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
