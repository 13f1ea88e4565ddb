import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.io.FileReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.connect.storage.MemoryOffsetBackingStore;

/**
 * Counts the records that Debezium's embedded engine makes of a table, or of a binlog, and throws them away. Arguments: a
 * file with the engine's properties, how many rows there are, and the engine's offset, as JSON, at which it begins, or
 * "". Prints a JSON object: rows a second, and rows a second of CPU of this whole process, from the first batch to the
 * last row, so that what the start costs is not in them.
 */
public final class EngineCount {
    private static final long LIMIT_SECONDS = 500;

    private final long wanted;
    private final CountDownLatch ended = new CountDownLatch(1);
    private long rows;
    private long first;
    private long begun;
    private Duration usedBefore;
    private volatile String figures;
    private volatile String failure = "the engine ended with fewer rows than there are";

    private EngineCount(long wanted) {
        this.wanted = wanted;
    }

    /** Positions that nobody needs again: the engine wants some place for them. It may begin with a given one. */
    public static final class Forgotten extends MemoryOffsetBackingStore {
        static String begin = "";

        @Override
        public void start() {
            super.start();
            if (!begin.isEmpty()) {
                data.put(bytes("[\"bench\",{\"server\":\"bench\"}]"), bytes(begin));
            }
        }

        private static ByteBuffer bytes(String text) {
            return ByteBuffer.wrap(text.getBytes(StandardCharsets.UTF_8));
        }

        @Override
        public Set<Map<String, Object>> connectorPartitions(String connector) {
            return Set.of();
        }
    }

    private static Duration used() {
        return ProcessHandle.current().info().totalCpuDuration().orElse(Duration.ZERO);
    }

    private void note(int records) {
        rows += records;
        if (begun == 0) {
            begun = System.nanoTime();
            usedBefore = used();
            first = rows;
        }
        if (rows >= wanted && figures == null) {
            double seconds = (System.nanoTime() - begun) / 1e9;
            double cpu = used().minus(usedBefore).toNanos() / 1e9;
            double counted = rows - first;
            figures = String.format(
                    java.util.Locale.ROOT,
                    "{\"rows_per_second\": %f, \"rows_per_cpu_second\": %f}",
                    counted / seconds,
                    counted / Math.max(cpu, 0.01));
            ended.countDown();
        }
    }

    private void run(Properties properties) throws Exception {
        DebeziumEngine<ChangeEvent<String, String>> engine = DebeziumEngine.create(Json.class)
                .using(properties)
                .using((success, message, error) -> {
                    if (!success) {
                        failure = message;
                        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
                            failure += "\n" + cause;
                        }
                    }
                    ended.countDown();
                })
                .notifying((records, committer) -> {
                    note(records.size());
                    for (ChangeEvent<String, String> record : records) {
                        committer.markProcessed(record);
                    }
                    committer.markBatchFinished();
                })
                .build();
        ExecutorService thread = Executors.newSingleThreadExecutor();
        thread.execute(engine);
        boolean inTime = ended.await(LIMIT_SECONDS, TimeUnit.SECONDS);
        if (figures != null) {
            System.out.println(figures);
        } else {
            System.err.println(inTime ? failure : rows + " rows after " + LIMIT_SECONDS + " s");
        }
        System.out.flush();
        // The engine takes seconds to end in order, and nothing of it is kept.
        Runtime.getRuntime().halt(figures == null ? 1 : 0);
    }

    /** The command. */
    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        try (FileReader reader = new FileReader(arguments[0])) {
            properties.load(reader);
        }
        Forgotten.begin = arguments[2];
        new EngineCount(Long.parseLong(arguments[1])).run(properties);
    }
}
