// Workers that take permits of one RPermitExpirableSemaphore: Permits PORT NAME PERMITS CLIENTS WORKERS, as semaphores.go tells
// them. A line with a number of milliseconds has them work for so long; they print what each of them got, and the longest wait.
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

public class Permits {
  static final class Worker extends Thread {
    final RPermitExpirableSemaphore semaphore;
    final long end;
    int permits;
    long longest;
    Exception failed;

    Worker(RPermitExpirableSemaphore semaphore, long end) {
      this.semaphore = semaphore;
      this.end = end;
    }

    @Override
    public void run() {
      try {
        while (System.nanoTime() < end) {
          long asked = System.nanoTime();
          String permit = semaphore.acquire(30, TimeUnit.SECONDS);
          longest = Math.max(longest, System.nanoTime() - asked);
          Thread.sleep(1);
          semaphore.release(permit);
          if (System.nanoTime() < end) {
            permits++;
          }
        }
      } catch (Exception e) {
        failed = e;
      }
    }
  }

  public static void main(String[] args) throws Exception {
    java.util.logging.LogManager.getLogManager().reset();
    int permits = Integer.parseInt(args[2]), clients = Integer.parseInt(args[3]), n = Integer.parseInt(args[4]);
    List<RedissonClient> all = new ArrayList<>();
    for (int i = 0; i < clients; i++) {
      Config config = new Config();
      config.useSingleServer().setAddress("redis://127.0.0.1:" + args[0]);
      all.add(Redisson.create(config));
    }
    System.out.println("ready");
    BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
    for (String line; (line = lines.readLine()) != null; ) {
      all.get(0).getPermitExpirableSemaphore(args[1]).setPermits(permits);
      long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(Long.parseLong(line));
      List<Worker> workers = new ArrayList<>();
      for (int i = 0; i < n; i++) {
        workers.add(new Worker(all.get(i % clients).getPermitExpirableSemaphore(args[1]), end));
      }
      workers.forEach(Thread::start);
      long longest = 0;
      List<Integer> each = new ArrayList<>();
      for (Worker w : workers) {
        w.join();
        if (w.failed != null) {
          throw w.failed;
        }
        longest = Math.max(longest, w.longest);
        each.add(w.permits);
      }
      System.out.println("{\"each\":" + each + ",\"longest\":" + longest / 1e6 + "}");
    }
    System.exit(0); // clients have threads that would go on
  }
}
