// Starts one Elasticsearch node inside this virtual machine: EsNode HOME [setting=value ...]. Stops on SIGTERM.
import java.nio.file.Path;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import org.elasticsearch.common.logging.LogConfigurator;
import org.elasticsearch.common.settings.Settings;
import org.elasticsearch.env.Environment;
import org.elasticsearch.node.InternalSettingsPreparer;
import org.elasticsearch.node.Node;
import org.elasticsearch.plugins.PluginsLoader;

public final class EsNode {
    public static void main(String[] args) throws Exception {
        Path home = Path.of(args[0]).toAbsolutePath();
        Settings.Builder builder = Settings.builder().put("path.home", home.toString());
        for (int i = 1; i < args.length; i++) {
            String[] setting = args[i].split("=", 2);
            builder.put(setting[0], setting[1]);
        }
        Settings settings = builder.build();
        LogConfigurator.configureWithoutConfig(settings);
        LogConfigurator.configureESLogging();
        Environment environment = InternalSettingsPreparer.prepareEnvironment(
            settings, Map.of(), home.resolve("config"), () -> "devstack");
        PluginsLoader loader = PluginsLoader.createPluginsLoader(
            PluginsLoader.loadModulesBundles(home.resolve("modules")),
            PluginsLoader.loadPluginsBundles(home.resolve("plugins")),
            Map.of());
        Node node = new Node(environment, loader);
        CountDownLatch closed = new CountDownLatch(1);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            try {
                node.close();
            } catch (Exception error) {
                error.printStackTrace();
            } finally {
                closed.countDown();
            }
        }));
        node.start();
        closed.await();
    }
}
