import com.alibaba.otter.canal.client.CanalConnector;
import com.alibaba.otter.canal.client.CanalConnectors;
import com.alibaba.otter.canal.protocol.CanalEntry;
import com.alibaba.otter.canal.protocol.Message;
import com.alibaba.otter.canal.protocol.exception.CanalClientException;
import java.net.InetSocketAddress;

/**
 * Reads a destination with Canal's own client as its users do: batches of up to 1,000 entries, each parsed, its rows
 * counted, and acknowledged. Ends after so many rows and prints how many there were.
 *
 * <p>usage: Count HOST PORT DESTINATION ROWS
 */
public final class Count {
  private static final int TRIES = 300;
  private static final int BATCH = 1000;
  private static final long PAUSE_MS = 2;

  public static void main(String[] args) throws Exception {
    InetSocketAddress address = new InetSocketAddress(args[0], Integer.parseInt(args[1]));
    long wanted = Long.parseLong(args[3]);
    CanalConnector client = CanalConnectors.newSingleConnector(address, args[2], "", "");
    connect(client);
    long rows = 0;
    while (rows < wanted) {
      Message message = client.getWithoutAck(BATCH);
      if (message.getId() == -1) {
        Thread.sleep(PAUSE_MS);
        continue;
      }
      for (CanalEntry.Entry entry : message.getEntries()) {
        if (entry.getEntryType() == CanalEntry.EntryType.ROWDATA) {
          rows += CanalEntry.RowChange.parseFrom(entry.getStoreValue()).getRowDatasCount();
        }
      }
      client.ack(message.getId());
    }
    client.disconnect();
    System.out.println(rows);
  }

  /** Waits until the destination is served. */
  private static void connect(CanalConnector client) throws InterruptedException {
    for (int tries = 0; ; tries++) {
      try {
        client.connect();
        client.subscribe(".*\\..*");
        return;
      } catch (CanalClientException error) {
        if (tries == TRIES) {
          throw error;
        }
        client.disconnect();
        Thread.sleep(100);
      }
    }
  }

  private Count() {}
}
