// Starts one OpenSearch node inside this virtual machine: OsNode HOME [setting=value ...]. Stops on SIGTERM.
import java.util.concurrent.CountDownLatch;
import org.codelibs.opensearch.runner.OpenSearchRunner;

public final class OsNode {
    public static void main(String[] args) throws Exception {
        OpenSearchRunner runner = new OpenSearchRunner();
        runner.onBuild((number, settings) -> {
            for (int i = 1; i < args.length; i++) {
                String[] setting = args[i].split("=", 2);
                settings.put(setting[0], setting[1]);
            }
        });
        CountDownLatch closed = new CountDownLatch(1);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            try {
                runner.close();
            } catch (Exception error) {
                error.printStackTrace();
            } finally {
                closed.countDown();
            }
        }));
        runner.build(OpenSearchRunner.newConfigs().basePath(args[0]).numOfNode(1).useLogger().printOnFailure());
        closed.await();
    }
}
