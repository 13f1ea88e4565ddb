import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.ServiceLoader;
import org.apache.flink.api.common.functions.util.ListCollector;
import org.apache.flink.api.common.serialization.DeserializationSchema;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.flink.table.api.DataTypes;
import org.apache.flink.table.connector.format.DecodingFormat;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.data.conversion.DataStructureConverter;
import org.apache.flink.table.data.conversion.DataStructureConverters;
import org.apache.flink.table.factories.DeserializationFormatFactory;
import org.apache.flink.table.factories.Factory;
import org.apache.flink.table.runtime.connector.source.ScanRuntimeProviderContext;
import org.apache.flink.table.types.DataType;
import org.apache.flink.table.types.logical.RowType;
import org.apache.flink.table.types.logical.utils.LogicalTypeParser;
import org.apache.flink.table.types.utils.TypeConversions;
import org.apache.flink.types.Row;

/**
 * Prints the rows that Flink makes of messages. Arguments: the name of the format, the type of a row, the metadata
 * columns with commas between them, and options of the table as key=value. Each line of the input is a message, an
 * empty one a message without a value. Each line of the output is a JSON array: the number of the message from 0, the
 * kind of the row, its columns as text or null. A message that Flink refuses has the kind "!" and what Flink says.
 */
public final class Rows {
  public static void main(String[] arguments) throws Exception {
    Configuration options = new Configuration();
    for (String option : Arrays.copyOfRange(arguments, 3, arguments.length)) {
      int at = option.indexOf('=');
      options.setString(option.substring(0, at), option.substring(at + 1));
    }
    DecodingFormat<DeserializationSchema<RowData>> format =
        factory(arguments[0]).createDecodingFormat(null, options);
    RowType columns = (RowType) LogicalTypeParser.parse(arguments[1], Rows.class.getClassLoader());
    DataType type = TypeConversions.fromLogicalToDataType(columns);
    List<DataTypes.Field> all = new ArrayList<>();
    for (RowType.RowField field : columns.getFields()) {
      all.add(DataTypes.FIELD(field.getName(), TypeConversions.fromLogicalToDataType(field.getType())));
    }
    if (!arguments[2].isEmpty()) {
      List<String> metadata = List.of(arguments[2].split(","));
      format.applyReadableMetadata(metadata);
      for (String key : metadata) {
        all.add(DataTypes.FIELD(key, format.listReadableMetadata().get(key)));
      }
    }
    DeserializationSchema<RowData> schema = format.createRuntimeDecoder(ScanRuntimeProviderContext.INSTANCE, type);
    schema.open(null);
    DataStructureConverter<Object, Object> toJava =
        DataStructureConverters.getConverter(DataTypes.ROW(all.toArray(DataTypes.Field[]::new)));
    toJava.open(Rows.class.getClassLoader());
    ObjectMapper json = new ObjectMapper();
    BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    int number = 0;
    for (String line = input.readLine(); line != null; line = input.readLine(), number++) {
      List<RowData> rows = new ArrayList<>();
      try {
        byte[] message = line.isEmpty() ? null : line.getBytes(StandardCharsets.UTF_8);
        schema.deserialize(message, new ListCollector<>(rows));
      } catch (Exception refused) {
        Throwable cause = refused;
        while (cause.getCause() != null) {
          cause = cause.getCause();
        }
        print(json, number, "!", cause.toString());
        continue;
      }
      for (RowData data : rows) {
        Row row = (Row) toJava.toExternal(data);
        Map<String, String> found = new LinkedHashMap<>();
        for (int i = 0; i < all.size(); i++) {
          found.put(all.get(i).getName(), text(row.getField(i)));
        }
        print(json, number, row.getKind().shortString(), found);
      }
    }
  }

  private static void print(ObjectMapper json, Object... line) throws Exception {
    System.out.write(json.writeValueAsBytes(line));
    System.out.write('\n');
    System.out.flush();
  }

  private static String text(Object value) {
    if (value instanceof byte[] bytes) {
      return HexFormat.of().formatHex(bytes);
    }
    if (value instanceof Object[] array) {
      return Arrays.deepToString(array);
    }
    return value == null ? null : value.toString();
  }

  private static DeserializationFormatFactory factory(String name) {
    for (Factory one : ServiceLoader.load(Factory.class)) {
      if (one instanceof DeserializationFormatFactory found && found.factoryIdentifier().equals(name)) {
        return found;
      }
    }
    throw new IllegalArgumentException("there is no format " + name);
  }
}
