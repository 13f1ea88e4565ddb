// Runs a server of Canal without its launcher, which no package registry has: CanalNode HOME, which holds
// canal.properties and a folder with instance.properties for each destination, as a Canal installation does.
import ch.qos.logback.classic.Level;
import com.alibaba.otter.canal.common.utils.JsonUtils;
import com.alibaba.otter.canal.common.zookeeper.ZkClientx;
import com.alibaba.otter.canal.common.zookeeper.ZookeeperPathUtils;
import com.alibaba.otter.canal.common.zookeeper.running.ServerRunningData;
import com.alibaba.otter.canal.common.zookeeper.running.ServerRunningListener;
import com.alibaba.otter.canal.common.zookeeper.running.ServerRunningMonitor;
import com.alibaba.otter.canal.common.zookeeper.running.ServerRunningMonitors;
import com.alibaba.otter.canal.connector.core.spi.CanalMQProducer;
import com.alibaba.otter.canal.connector.kafka.producer.CanalKafkaProducer;
import com.alibaba.otter.canal.instance.core.CanalInstance;
import com.alibaba.otter.canal.instance.core.CanalMQConfig;
import com.alibaba.otter.canal.instance.manager.CanalInstanceWithManager;
import com.alibaba.otter.canal.instance.manager.model.Canal;
import com.alibaba.otter.canal.instance.manager.model.CanalParameter;
import com.alibaba.otter.canal.protocol.position.EntryPosition;
import com.alibaba.otter.canal.server.CanalMQStarter;
import com.alibaba.otter.canal.server.embedded.CanalServerWithEmbedded;
import com.alibaba.otter.canal.server.netty.CanalServerWithNetty;
import java.io.IOException;
import java.io.Reader;
import java.net.InetSocketAddress;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

public final class CanalNode {
    private final Path home;
    private final Properties settings;
    private final CanalServerWithEmbedded server = CanalServerWithEmbedded.instance();
    private ZkClientx zookeeper;
    private CanalMQStarter sending;

    private CanalNode(Path home) throws IOException {
        this.home = home;
        settings = read(home.resolve("canal.properties"), new Properties());
    }

    public static void main(String[] arguments) throws Exception {
        ((ch.qos.logback.classic.Logger) LoggerFactory.getLogger(Logger.ROOT_LOGGER_NAME)).setLevel(Level.INFO);
        new CanalNode(Path.of(arguments[0])).start();
        System.out.println("CanalNode has started");
        Thread.currentThread().join();
    }

    private void start() throws IOException {
        boolean kafka = settings.getProperty("canal.serverMode", "tcp").equals("kafka");
        // a message of JSON needs entries as objects
        boolean raw = !kafka || settings.getProperty("canal.mq.flatMessage", "true").equals("false");
        Map<String, Properties> destinations = new HashMap<>();
        for (String name : settings.getProperty("canal.destinations").split(",")) {
            if (!name.isEmpty()) {
                destinations.put(name, read(home.resolve(name).resolve("instance.properties"), settings));
            }
        }
        server.setUser(settings.getProperty("canal.user"));
        server.setPasswd(settings.getProperty("canal.passwd"));
        server.setCanalInstanceGenerator(name -> instance(name, destinations.get(name), raw));
        server.start();
        if (kafka) {
            CanalMQProducer producer = new CanalKafkaProducer();
            producer.init(settings);
            sending = new CanalMQStarter(producer);
            sending.start(settings.getProperty("canal.destinations"));
        }
        runWhereActive(destinations.keySet());
        if (!kafka) {
            CanalServerWithNetty port = CanalServerWithNetty.instance();
            port.setIp(settings.getProperty("canal.ip"));
            port.setPort(Integer.parseInt(settings.getProperty("canal.port")));
            port.start();
        }
    }

    /** Without ZooKeeper at once, and with it while this node has the destination's node "running". */
    private void runWhereActive(Iterable<String> destinations) {
        String address = settings.getProperty("canal.ip") + ":" + settings.getProperty("canal.port");
        if (settings.getProperty("canal.zkServers") != null) {
            zookeeper = ZkClientx.getZkClient(settings.getProperty("canal.zkServers"));
            zookeeper.createPersistent(ZookeeperPathUtils.DESTINATION_ROOT_NODE, true);
            zookeeper.createPersistent(ZookeeperPathUtils.CANAL_CLUSTER_ROOT_NODE, true);
            zookeeper.createEphemeral(ZookeeperPathUtils.getCanalClusterNode(address));
        }
        ServerRunningData data = new ServerRunningData(address);
        Map<String, ServerRunningMonitor> monitors = new HashMap<>();
        ServerRunningMonitors.setServerData(data);
        ServerRunningMonitors.setRunningMonitors(monitors);
        for (String name : destinations) {
            ServerRunningMonitor monitor = new ServerRunningMonitor(data);
            monitors.put(name, monitor);
            monitor.setDestination(name);
            monitor.setListener(new Destination(name, address));
            if (zookeeper != null) {
                monitor.setZkClient(zookeeper);
            }
            monitor.start();
        }
    }

    private final class Destination implements ServerRunningListener {
        private final String name;
        private final String address;

        Destination(String name, String address) {
            this.name = name;
            this.address = address;
        }

        @Override
        public void processStart() {
            String path = ZookeeperPathUtils.getDestinationClusterNode(name, address);
            if (zookeeper != null && !zookeeper.exists(path)) {
                zookeeper.createPersistent(ZookeeperPathUtils.getDestinationClusterRoot(name), true);
                zookeeper.createEphemeral(path);
            }
        }

        @Override
        public void processStop() {
            if (zookeeper != null) {
                zookeeper.delete(ZookeeperPathUtils.getDestinationClusterNode(name, address));
            }
        }

        @Override
        public void processActiveEnter() {
            server.start(name);
            if (sending != null) {
                sending.startDestination(name);
            }
        }

        @Override
        public void processActiveExit() {
            if (sending != null) {
                sending.stopDestination(name);
            }
            server.stop(name);
        }
    }

    private CanalInstance instance(String name, Properties of, boolean raw) {
        CanalParameter made = new CanalParameter();
        made.setMemoryStorageRawEntry(raw);
        made.setIndexMode(CanalParameter.IndexMode.MEMORY_META_FAILBACK);
        if (of.getProperty("canal.zkServers") == null) {
            made.setMetaMode(CanalParameter.MetaMode.LOCAL_FILE);
            made.setDataDir(home.toString());
        } else {
            made.setMetaMode(CanalParameter.MetaMode.MIXED);
            made.setZkClusters(List.of(of.getProperty("canal.zkServers")));
        }
        String[] address = of.getProperty("canal.instance.master.address").split(":");
        CanalParameter.DataSourcing source = new CanalParameter.DataSourcing(
            CanalParameter.SourcingType.MYSQL, new InetSocketAddress(address[0], Integer.parseInt(address[1])));
        made.setGroupDbAddresses(List.of(List.of(source)));
        made.setDbUsername(of.getProperty("canal.instance.dbUsername"));
        made.setDbPassword(of.getProperty("canal.instance.dbPassword"));
        made.setSlaveId(Long.parseLong(of.getProperty("canal.instance.mysql.slaveId", "0")));
        made.setGtidEnable(Boolean.parseBoolean(of.getProperty("canal.instance.gtidon")));
        made.setParallel(Boolean.parseBoolean(of.getProperty("canal.instance.parser.parallel", "true")));
        made.setDetectingEnable(false);
        made.setBlackFilter(of.getProperty("canal.instance.filter.black.regex"));
        String position = of.getProperty("canal.instance.master.position");
        if (position != null) {
            String file = of.getProperty("canal.instance.master.journal.name");
            made.setPositions(List.of(JsonUtils.marshalToString(new EntryPosition(file, Long.parseLong(position)))));
        }
        return new CanalInstanceWithManager(canal(name, made), of.getProperty("canal.instance.filter.regex", ".*\\..*")) {
            {
                mqConfig = new CanalMQConfig();
                mqConfig.setTopic(of.getProperty("canal.mq.topic"));
                mqConfig.setDynamicTopic(of.getProperty("canal.mq.dynamicTopic"));
                mqConfig.setPartition(number(of.getProperty("canal.mq.partition")));
                mqConfig.setPartitionsNum(number(of.getProperty("canal.mq.partitionsNum")));
                mqConfig.setPartitionHash(of.getProperty("canal.mq.partitionHash"));
            }
        };
    }

    private static Integer number(String text) {
        return text == null ? null : Integer.valueOf(text);
    }

    private static Canal canal(String name, CanalParameter parameter) {
        Canal made = new Canal();
        made.setId(1L);
        made.setName(name);
        made.setCanalParameter(parameter);
        return made;
    }

    private static Properties read(Path file, Properties defaults) throws IOException {
        Properties found = new Properties(defaults);
        try (Reader text = Files.newBufferedReader(file)) {
            found.load(text);
        }
        return found;
    }
}
