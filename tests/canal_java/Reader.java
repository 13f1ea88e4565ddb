import ch.qos.logback.classic.Level;
import ch.qos.logback.classic.Logger;
import com.alibaba.otter.canal.client.CanalConnector;
import com.alibaba.otter.canal.client.CanalConnectors;
import com.alibaba.otter.canal.protocol.CanalEntry;
import com.alibaba.otter.canal.protocol.Message;
import java.net.InetSocketAddress;
import java.util.Random;
import org.slf4j.LoggerFactory;

/**
 * Reads a destination with Canal's own client and prints a line for each row that is acknowledged: its type, and the
 * value of its first column. Rolls back, disconnects and connects again at random, by a seed, until it has seen the
 * value LAST.
 *
 * <p>usage: Reader PORT|ZOOKEEPER DESTINATION USER PASSWORD SEED LAST; with hosts of ZooKeeper it finds the server there
 */
public final class Reader {
  public static void main(String[] args) throws Exception {
    ((Logger) LoggerFactory.getLogger(Logger.ROOT_LOGGER_NAME)).setLevel(Level.OFF); // it logs to where rows go
    Random random = new Random(Long.parseLong(args[4]));
    CanalConnector client = connector(args);
    boolean connected = false;
    boolean last = false;
    while (!last) {
      try {
        if (!connected) {
          client.connect();
          client.subscribe(".*\\..*");
          client.rollback();
          connected = true;
        }
        Message message = client.getWithoutAck(1 + random.nextInt(1000));
        int chance = random.nextInt(100);
        if (message.getId() == -1) {
          Thread.sleep(20);
        } else if (chance < 10) {
          client.rollback(random.nextBoolean() ? message.getId() : 0);
        } else if (chance < 13) {
          client.disconnect();
          connected = false;
        } else {
          client.ack(message.getId());
          last = print(message, args[5]);
        }
      } catch (Exception error) {
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
          System.err.println(cause);
        }
        try {
          client.disconnect();
        } catch (Exception gone) {
          System.err.println(gone);
        }
        connected = false;
        Thread.sleep(200);
      }
    }
    client.disconnect();
  }

  private static CanalConnector connector(String[] args) {
    if (args[0].contains(":")) {
      return CanalConnectors.newClusterConnector(args[0], args[1], args[2], args[3]);
    }
    InetSocketAddress address = new InetSocketAddress("127.0.0.1", Integer.parseInt(args[0]));
    return CanalConnectors.newSingleConnector(address, args[1], args[2], args[3]);
  }

  private static boolean print(Message message, String last) throws Exception {
    boolean found = false;
    for (CanalEntry.Entry entry : message.getEntries()) {
      if (entry.getEntryType() != CanalEntry.EntryType.ROWDATA) {
        continue;
      }
      CanalEntry.RowChange change = CanalEntry.RowChange.parseFrom(entry.getStoreValue());
      for (CanalEntry.RowData row : change.getRowDatasList()) {
        boolean gone = change.getEventType() == CanalEntry.EventType.DELETE;
        String value = (gone ? row.getBeforeColumns(0) : row.getAfterColumns(0)).getValue();
        System.out.println(change.getEventType() + " " + value);
        found |= value.equals(last);
      }
    }
    System.out.flush();
    return found;
  }

  private Reader() {}
}
