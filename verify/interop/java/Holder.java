// Workers that take one lock on command: Holder LIBRARY PORT KEY TTL WORKERS. See verify/peers/worker.go for the protocol.
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Lock;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.LockProvider;
import net.javacrumbs.shedlock.core.SimpleLock;
import net.javacrumbs.shedlock.provider.jdbctemplate.JdbcTemplateLockProvider;
import net.javacrumbs.shedlock.provider.redis.spring.RedisLockProvider;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.state.ConnectionState;
import org.apache.curator.retry.ExponentialBackoffRetry;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.config.Config;
import org.springframework.dao.DataAccessException;
import org.springframework.integration.redis.util.RedisLockRegistry;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.jdbc.datasource.DriverManagerDataSource;

public class Holder {
  // Peer is a lock of one library, with a client of its own.
  interface Peer {
    boolean take(Long limit) throws Exception; // null: it asks once

    Boolean check() throws Exception; // null: the library has no check

    void unlock() throws Exception;
  }

  record Redissons(RLock lock) implements Peer {
    public boolean take(Long limit) throws Exception {
      return limit == null ? lock.tryLock() : lock.tryLock(limit, TimeUnit.MILLISECONDS);
    }

    public Boolean check() {
      return lock.isHeldByCurrentThread();
    }

    public void unlock() {
      lock.unlock();
    }
  }

  record Spring(Lock lock) implements Peer {
    public boolean take(Long limit) throws Exception {
      return limit == null ? lock.tryLock() : lock.tryLock(limit, TimeUnit.MILLISECONDS);
    }

    public Boolean check() {
      return null;
    }

    public void unlock() {
      lock.unlock();
    }
  }

  // Shed never waits: what runs a job comes again by itself.
  static class Shed implements Peer {
    final LockProvider provider;
    final String key;
    final Duration ttl;
    SimpleLock lock;

    Shed(LockProvider provider, String key, Duration ttl) {
      this.provider = provider;
      this.key = key;
      this.ttl = ttl;
    }

    public boolean take(Long limit) {
      Optional<SimpleLock> got = provider.lock(new LockConfiguration(Instant.now(), key, ttl, Duration.ZERO));
      got.ifPresent(l -> lock = l);
      return got.isPresent();
    }

    public Boolean check() {
      return null;
    }

    public void unlock() {
      lock.unlock();
    }
  }

  // Curators takes SUSPENDED and LOST of the client's state for the notice, as its documentation advises.
  record Curators(InterProcessMutex lock) implements Peer {
    public boolean take(Long limit) throws Exception {
      return lock.acquire(limit == null ? 0 : limit, TimeUnit.MILLISECONDS);
    }

    public Boolean check() {
      return lock.isOwnedByCurrentThread();
    }

    public void unlock() throws Exception {
      lock.release();
    }
  }

  static Peer open(String library, int port, String key, Duration ttl, int worker) throws Exception {
    switch (library) {
      case "redisson" -> {
        Config config = new Config();
        config.setThreads(2).setNettyThreads(2).setLockWatchdogTimeout(ttl.toMillis());
        config.useSingleServer().setAddress("redis://127.0.0.1:" + port).setConnectionPoolSize(4).setConnectionMinimumIdleSize(1)
            .setSubscriptionConnectionMinimumIdleSize(1).setSubscriptionConnectionPoolSize(2);
        return new Redissons(Redisson.create(config).getLock(key));
      }
      case "spring" -> {
        return new Spring(new RedisLockRegistry(Worker.connections(port), "registry", ttl.toMillis()).obtain(key));
      }
      case "shedlock-redis" -> {
        return new Shed(new RedisLockProvider(Worker.connections(port)), key, ttl);
      }
      case "shedlock-redis-safe" -> {
        return new Shed(new RedisLockProvider.Builder(Worker.connections(port)).safeUpdate(true).build(), key, ttl);
      }
      case "shedlock-jdbc", "shedlock-jdbc-hosts" -> {
        JdbcTemplate db = new JdbcTemplate(new DriverManagerDataSource("jdbc:postgresql://127.0.0.1:" + port + "/postgres", "holdfast", ""));
        try {
          db.execute("CREATE TABLE IF NOT EXISTS shedlock (name VARCHAR(64) PRIMARY KEY, lock_until TIMESTAMP NOT NULL,"
              + " locked_at TIMESTAMP NOT NULL, locked_by VARCHAR(255) NOT NULL)");
        } catch (DataAccessException e) {
          db.queryForObject("SELECT count(*) FROM shedlock", Long.class); // another worker created it at the same time
        }
        JdbcTemplateLockProvider.Configuration.Builder settings = JdbcTemplateLockProvider.Configuration.builder().withJdbcTemplate(db).usingDbTime();
        if (library.equals("shedlock-jdbc-hosts")) { // the name of the host by default, which all of these workers share
          settings.withLockedByValue("host-" + ProcessHandle.current().pid() + "-" + worker);
        }
        return new Shed(new JdbcTemplateLockProvider(settings.build()), key, ttl);
      }
      case "curator" -> {
        CuratorFramework client = CuratorFrameworkFactory.newClient(
            "127.0.0.1:" + port, (int) ttl.toMillis(), 15_000, new ExponentialBackoffRetry(1000, 3));
        client.getConnectionStateListenable().addListener((c, state) -> {
          if (state == ConnectionState.LOST || state == ConnectionState.SUSPENDED) {
            say(worker + " ! " + state.name().toLowerCase());
          }
        });
        client.start();
        client.blockUntilConnected(60, TimeUnit.SECONDS);
        return new Curators(new InterProcessMutex(client, "/" + key));
      }
      default -> throw new IllegalArgumentException(library);
    }
  }

  static synchronized void say(String line) {
    System.out.println(line);
  }

  // version is the one in the name of the library's jar.
  static String version(String library) {
    Class<?> of = switch (library) {
      case "redisson" -> Redisson.class;
      case "spring" -> RedisLockRegistry.class;
      case "shedlock-redis", "shedlock-redis-safe", "shedlock-jdbc", "shedlock-jdbc-hosts" -> LockProvider.class;
      default -> InterProcessMutex.class;
    };
    Matcher m = Pattern.compile("-([0-9][^/]*)\\.jar").matcher(of.getProtectionDomain().getCodeSource().getLocation().getPath());
    return m.find() ? m.group(1) : "?";
  }

  static String obey(Peer peer, String[] words) {
    boolean takes = words[1].equals("lock") || words[1].equals("try");
    try {
      if (takes) {
        return peer.take(words.length > 2 ? Long.valueOf(words[2]) : null) ? "held" : "no: false";
      }
      if (words[1].equals("check")) {
        Boolean held = peer.check();
        return held == null ? "none" : held ? "held" : "lost";
      }
      peer.unlock();
      return "ok";
    } catch (Throwable e) {
      return ((takes ? "no: " : "error: ") + e.getClass().getSimpleName() + " " + e.getMessage()).replaceAll("\\s+", " ");
    }
  }

  public static void main(String[] args) throws Exception {
    java.util.logging.LogManager.getLogManager().reset();
    String library = args[0];
    List<Peer> peers = new ArrayList<>();
    List<ExecutorService> threads = new ArrayList<>(); // a lock belongs to a thread
    for (int i = 0; i < Integer.parseInt(args[4]); i++) {
      peers.add(open(library, Integer.parseInt(args[1]), args[2], Duration.ofSeconds(Integer.parseInt(args[3])), i));
      threads.add(Executors.newSingleThreadExecutor());
    }
    say("ready " + version(library));
    BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
    for (String line; (line = lines.readLine()) != null; ) {
      String[] words = line.split(" ");
      int i = Integer.parseInt(words[0]);
      threads.get(i).submit(() -> say(i + " = " + obey(peers.get(i), words)));
    }
    System.exit(0); // some clients have threads that would go on
  }
}
