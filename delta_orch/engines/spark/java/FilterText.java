// Compiled inside the driver's JVM by Janino (see `classic.py`): raw types only, no lambdas.
package delta_orch.spark;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.CaseWhen;
import org.apache.spark.sql.catalyst.expressions.Coalesce;
import org.apache.spark.sql.catalyst.expressions.EqualNullSafe;
import org.apache.spark.sql.catalyst.expressions.EqualTo;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GetStructField;
import org.apache.spark.sql.catalyst.expressions.GreaterThan;
import org.apache.spark.sql.catalyst.expressions.GreaterThanOrEqual;
import org.apache.spark.sql.catalyst.expressions.If;
import org.apache.spark.sql.catalyst.expressions.In;
import org.apache.spark.sql.catalyst.expressions.InSet;
import org.apache.spark.sql.catalyst.expressions.IsNotNull;
import org.apache.spark.sql.catalyst.expressions.IsNull;
import org.apache.spark.sql.catalyst.expressions.LessThan;
import org.apache.spark.sql.catalyst.expressions.LessThanOrEqual;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.NaNvl;
import org.apache.spark.sql.catalyst.expressions.Not;
import org.apache.spark.sql.catalyst.expressions.Or;
import org.apache.spark.sql.catalyst.expressions.StartsWith;
import org.apache.spark.sql.types.BooleanType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * What Spark asks of a scan, as text for Python (`pushed_filters.py`): JSON, an array a node, null for what has no
 * counterpart there. Such a part may be true, false or null for any row.
 */
public final class FilterText {
  private FilterText() {}

  /** One node a filter, all of which must hold; null where nothing in them is understood. */
  public static String of(scala.collection.immutable.Seq filters) throws Exception {
    List nodes = new ArrayList();
    for (int i = 0; i < filters.length(); i++) {
      Object node = node((Expression) filters.apply(i));
      if (node != null) {
        nodes.add(node);
      }
    }
    return nodes.isEmpty() ? null : new ObjectMapper().writeValueAsString(nodes);
  }

  private static List list(Object first, Object second) {
    return Arrays.asList(new Object[] {first, second});
  }

  private static List list(Object first, Object second, Object third) {
    return Arrays.asList(new Object[] {first, second, third});
  }

  private static List node(Expression e) {
    if (e instanceof And || e instanceof Or) {
      List left = node(child(e, 0));
      List right = node(child(e, 1));
      if (left == null && right == null) {
        return null;
      }
      return list(e instanceof And ? "and" : "or", left, right);
    }
    if (e instanceof Not) {
      List negated = node(child(e, 0));
      return negated == null ? null : list("not", negated);
    }
    if (e instanceof IsNull || e instanceof IsNotNull) {
      List path = path(child(e, 0));
      if (path == null) {
        return null;
      }
      return e instanceof IsNull ? list("null", path) : list("not", list("null", path));
    }
    if (e instanceof In) {
      return in(child(e, 0), literals(e));
    }
    if (e instanceof InSet) {
      return in(child(e, 0), values((InSet) e));
    }
    if (e instanceof StartsWith) {
      List path = path(child(e, 0));
      List prefix = literal(child(e, 1));
      return path == null || prefix == null || prefix.get(0) == null ? null : list("prefix", path, prefix.get(0));
    }
    if (e instanceof AttributeReference || e instanceof GetStructField) {
      List path = e.dataType() instanceof BooleanType ? path(e) : null;
      return path == null ? null : Arrays.asList(new Object[] {"compare", "=", path, list("true")});
    }
    if (isNullUnless(e)) {
      // True where both are true. Elsewhere null where this says false: fewer files are left out, never more.
      List condition = node(child(e, 0));
      List then = node(child(e, 1));
      return condition == null && then == null ? null : list("and", condition, then);
    }
    return comparison(e);
  }

  private static List list(Object only) {
    return Arrays.asList(new Object[] {only});
  }

  private static List comparison(Expression e) {
    String op = operator(e);
    if (op == null) {
      return null;
    }
    List path = path(child(e, 0));
    List value = literal(child(e, 1));
    if (path == null) {
      path = path(child(e, 1));
      value = literal(child(e, 0));
      op = mirrored(op);
    }
    if (path == null || value == null || !child(e, 0).dataType().equals(child(e, 1).dataType())) {
      return null;
    }
    return Arrays.asList(new Object[] {"compare", op, path, value});
  }

  private static String mirrored(String op) {
    if (op.equals("=") || op.equals("<=>")) {
      return op;
    }
    return (op.charAt(0) == '<' ? '>' : '<') + op.substring(1);
  }

  private static String operator(Expression e) {
    return e instanceof EqualTo
        ? "="
        : e instanceof EqualNullSafe
            ? "<=>"
            : e instanceof LessThan
                ? "<"
                : e instanceof LessThanOrEqual
                    ? "<="
                    : e instanceof GreaterThan ? ">" : e instanceof GreaterThanOrEqual ? ">=" : null;
  }

  private static List in(Expression tested, List values) {
    List path = path(tested);
    return path == null || values == null ? null : list("in", path, values);
  }

  /** The constants of `x IN (…)`; null where one is none, or of another type. */
  private static List literals(Expression in) {
    List values = new ArrayList();
    for (int i = 1; i < in.children().length(); i++) {
      List value = child(in, i).dataType().equals(child(in, 0).dataType()) ? literal(child(in, i)) : null;
      if (value == null) {
        return null;
      }
      values.add(value);
    }
    return values;
  }

  private static List values(InSet in) {
    List values = new ArrayList();
    scala.collection.Iterator found = in.hset().iterator();
    while (found.hasNext()) {
      List value = value(found.next(), child(in, 0).dataType());
      if (value == null) {
        return null;
      }
      values.add(value);
    }
    return values;
  }

  /** The names that lead to a column, or to a field of a struct; null for anything else. */
  private static List path(Expression e) {
    if (e instanceof AttributeReference) {
      List names = new ArrayList();
      names.add(((AttributeReference) e).name());
      return names;
    }
    if (e instanceof GetStructField) {
      Expression struct = child(e, 0);
      List names = path(struct);
      if (names != null) {
        names.add(((StructType) struct.dataType()).apply(((GetStructField) e).ordinal()).name());
      }
      return names;
    }
    boolean isItself = e instanceof Coalesce && child(e, 0).semanticEquals(child(e, 1));
    if (isItself || (e instanceof NaNvl && isNaN(child(e, 1)))) {
      return path(child(e, 0));
    }
    return guarded(e);
  }

  private static boolean isNaN(Expression e) {
    return e instanceof Literal && "NaN".equals(String.valueOf(((Literal) e).value()));
  }

  /** A field that is only looked at where the struct is not null: it is null there anyway. */
  private static List guarded(Expression e) {
    if (!isNullUnless(e) || !(child(e, 0) instanceof IsNotNull)) {
      return null;
    }
    List struct = path(child(child(e, 0), 0));
    List field = path(child(e, 1));
    boolean isInside = struct != null && field != null && struct.size() <= field.size();
    return isInside && field.subList(0, struct.size()).equals(struct) ? field : null;
  }

  /** `CASE WHEN a THEN b END`, spelled in any way. */
  private static boolean isNullUnless(Expression e) {
    if (!(e instanceof CaseWhen) && !(e instanceof If)) {
      return false;
    }
    int count = e.children().length();
    return count == 2 || (count == 3 && isNullLiteral(child(e, 2)));
  }

  private static boolean isNullLiteral(Expression e) {
    return e instanceof Literal && ((Literal) e).value() == null;
  }

  private static Expression child(Expression e, int index) {
    return (Expression) e.children().apply(index);
  }

  private static List literal(Expression e) {
    return e instanceof Literal ? value(((Literal) e).value(), e.dataType()) : null;
  }

  /** A list of one text, null in it for NULL; null where the value cannot be told in text. */
  private static List value(Object value, DataType type) {
    String name = type.typeName();
    if (value == null) {
      return list(null);
    }
    if (value instanceof UTF8String) {
      // Under a collation other strings are equal, and others come first.
      return name.equals("string") && ((UTF8String) value).isValid() ? list(value.toString()) : null;
    }
    if (value instanceof Float) {
      return list(Double.toString(((Float) value).doubleValue()));
    }
    if (value instanceof Decimal) {
      return list(((Decimal) value).toJavaBigDecimal().toPlainString());
    }
    boolean isInteger = name.equals("long") || name.equals("integer") || name.equals("short") || name.equals("byte");
    boolean isTime = name.equals("date") || name.equals("timestamp") || name.equals("timestamp_ntz");
    boolean isKnown = isInteger || isTime || name.equals("boolean") || name.equals("double");
    return isKnown ? list(value.toString()) : null;
  }
}
