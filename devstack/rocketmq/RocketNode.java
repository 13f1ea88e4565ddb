// Runs RocketMQ's name server, broker and proxy inside one virtual machine, on loopback only:
// RocketNode HOME, which holds namesrv.conf, broker.conf and proxy.json.
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.file.Path;
import org.apache.rocketmq.namesrv.NamesrvStartup;
import org.apache.rocketmq.proxy.ProxyStartup;

public final class RocketNode {
    public static void main(String[] args) throws Exception {
        Path home = Path.of(args[0]).toAbsolutePath();
        anyAddressIsLoopback();
        NamesrvStartup.main0(new String[] {"-c", home.resolve("namesrv.conf").toString()});
        ProxyStartup.main(new String[] {
            "-pm", "local",
            "-pc", home.resolve("proxy.json").toString(),
            "-bc", home.resolve("broker.conf").toString(),
        });
    }

    /**
     * The proxy's ports and the broker's replication port can't be given an address: they are bound with a port alone,
     * which means the wildcard. Java makes that address once; here it becomes 127.0.0.1, before anybody uses it.
     */
    private static void anyAddressIsLoopback() throws Exception {
        InetAddress any = new InetSocketAddress(0).getAddress();
        Method holder = InetAddress.class.getDeclaredMethod("holder");
        holder.setAccessible(true);
        Field address = holder.invoke(any).getClass().getDeclaredField("address");
        address.setAccessible(true);
        address.setInt(holder.invoke(any), 0x7f000001);
        if (!new InetSocketAddress(0).getAddress().isLoopbackAddress()) {
            throw new IllegalStateException("the wildcard address could not be replaced");
        }
    }
}
