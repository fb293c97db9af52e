import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import io.unitycatalog.client.delta.model.DeltaCreateStagingTableRequest;
import io.unitycatalog.client.delta.model.DeltaCreateTableRequest;
import io.unitycatalog.client.delta.model.DeltaLoadTableResponse;
import io.unitycatalog.client.delta.model.DeltaReportMetricsRequest;
import io.unitycatalog.client.delta.model.DeltaStagingTableResponse;
import io.unitycatalog.client.delta.model.DeltaUpdateTableRequest;
import io.unitycatalog.client.delta.serde.DeltaDataTypeModule;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Map;

/** Reads pairs of a kind and a body, one a line, and writes the body as the models of Unity Catalog's SDK have it. */
public class Models {
  static final Map<String, Class<?>> KINDS =
      Map.of(
          "createStagingTable", DeltaCreateStagingTableRequest.class,
          "createTable", DeltaCreateTableRequest.class,
          "updateTable", DeltaUpdateTableRequest.class,
          "reportMetrics", DeltaReportMetricsRequest.class,
          "table", DeltaLoadTableResponse.class,
          "staging", DeltaStagingTableResponse.class);

  public static void main(String[] arguments) throws Exception {
    ObjectMapper mapper = new ObjectMapper().registerModule(new DeltaDataTypeModule());
    mapper.configure(DeserializationFeature.FAIL_ON_UNKNOWN_PROPERTIES, true);
    BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
    for (String line = lines.readLine(); line != null; line = lines.readLine()) {
      JsonNode pair = mapper.readTree(line);
      Object model = mapper.treeToValue(pair.get(1), KINDS.get(pair.get(0).asText()));
      System.out.println(mapper.writeValueAsString(model));
    }
  }
}
