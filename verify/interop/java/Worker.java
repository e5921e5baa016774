// Workers that increment a counter under a lock: Worker LIBRARY PORTS KEY COUNT WORKERS, as interop.go tells them. Each
// has a client of its own, as a process would. A line "go" has all of them work; "lock 2", "try 2", "unlock 2", "count 2",
// "token 2" and "force 2" have one of them do what its own thread can do with its lock, and print "2 " and the outcome.
import io.lettuce.core.RedisClient;
import io.lettuce.core.api.sync.RedisCommands;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.locks.Lock;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.SimpleLock;
import net.javacrumbs.shedlock.provider.redis.spring.RedisLockProvider;
import org.redisson.Redisson;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;
import org.springframework.integration.redis.util.RedisLockRegistry;

public class Worker {
  static final Duration TTL = Duration.ofMinutes(1); // longer than a test: no lock ends before its holder

  final ExecutorService thread = Executors.newSingleThreadExecutor(); // a lock belongs to a thread
  final String key;
  Lock lock; // of Redisson or Spring
  RedisLockProvider provider; // of ShedLock, which never waits
  SimpleLock taken;

  Worker(String library, int port, String key) {
    this.key = key;
    switch (library) {
      case "redisson", "redisson-fair", "redisson-fenced" -> {
        Config config = new Config();
        config.setThreads(2).setNettyThreads(2);
        config.useSingleServer().setAddress("redis://127.0.0.1:" + port).setConnectionPoolSize(4).setConnectionMinimumIdleSize(1)
            .setSubscriptionConnectionMinimumIdleSize(1).setSubscriptionConnectionPoolSize(2);
        RedissonClient client = Redisson.create(config);
        lock = switch (library) {
          case "redisson-fair" -> client.getFairLock(key);
          case "redisson-fenced" -> client.getFencedLock(key);
          default -> client.getLock(key);
        };
      }
      case "shedlock" -> provider = new RedisLockProvider(connections(port));
      case "spring" -> lock = new RedisLockRegistry(connections(port), "registry", TTL.toMillis()).obtain(key);
      default -> throw new IllegalArgumentException(library);
    }
  }

  static LettuceConnectionFactory connections(int port) {
    LettuceConnectionFactory connections = new LettuceConnectionFactory("127.0.0.1", port);
    connections.afterPropertiesSet();
    connections.start();
    return connections;
  }

  boolean tryLock() {
    if (provider == null) {
      return lock.tryLock();
    }
    Optional<SimpleLock> got = provider.lock(new LockConfiguration(Instant.now(), key, TTL, Duration.ZERO));
    taken = got.orElse(null);
    return got.isPresent();
  }

  void lock() throws InterruptedException {
    if (provider == null) {
      lock.lock();
      return;
    }
    while (!tryLock()) {
      Thread.sleep(ThreadLocalRandom.current().nextInt(10, 50)); // what runs the job comes again
    }
  }

  void unlock() {
    if (provider == null) {
      lock.unlock();
    } else {
      taken.unlock();
    }
  }

  // increments increments the counter so many times, and returns the longest wait for the lock in ns.
  long increments(int count, RedisCommands<String, String> data) throws InterruptedException {
    long longest = 0;
    for (int i = 0; i < count; i++) {
      long since = System.nanoTime();
      lock();
      longest = Math.max(longest, System.nanoTime() - since);
      String n = data.get("counter");
      Thread.sleep(1);
      data.set("counter", Long.toString((n == null ? 0 : Long.parseLong(n)) + 1));
      unlock();
    }
    return longest;
  }

  Object obey(String verb) throws InterruptedException {
    switch (verb) {
      case "lock" -> lock();
      case "unlock" -> unlock();
      case "try" -> {
        return tryLock();
      }
      case "count" -> {
        return ((RLock) lock).getHoldCount();
      }
      case "token" -> {
        return ((RFencedLock) lock).getToken();
      }
      case "force" -> {
        return ((RLock) lock).forceUnlock();
      }
      default -> throw new IllegalArgumentException(verb);
    }
    return verb;
  }

  public static void main(String[] args) throws Exception {
    java.util.logging.LogManager.getLogManager().reset();
    int port = Integer.parseInt(args[1]), count = Integer.parseInt(args[3]), n = Integer.parseInt(args[4]);
    List<Worker> workers = new ArrayList<>();
    for (int i = 0; i < n; i++) {
      workers.add(new Worker(args[0], port, args[2]));
    }
    RedisCommands<String, String> data = RedisClient.create("redis://127.0.0.1:" + port).connect().sync();
    System.out.println("ready");
    BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
    for (String line; (line = lines.readLine()) != null; ) {
      if (line.equals("go")) {
        List<Future<Long>> waits = new ArrayList<>();
        for (Worker w : workers) {
          waits.add(w.thread.submit(() -> w.increments(count / n, data)));
        }
        long longest = 0;
        for (Future<Long> wait : waits) {
          longest = Math.max(longest, wait.get());
        }
        System.out.println("{\"locks\":" + count / n * n + ",\"longest\":" + longest / 1e9 + "}");
        continue;
      }
      String[] words = line.split(" ");
      workers.get(Integer.parseInt(words[1])).thread.submit((Callable<Void>) () -> {
        String said;
        try {
          said = words[1] + " " + workers.get(Integer.parseInt(words[1])).obey(words[0]);
        } catch (Exception e) {
          said = words[1] + " " + e;
        }
        System.out.println(said);
        return null;
      });
    }
    System.exit(0); // some clients have threads that would go on
  }
}
