#!/usr/bin/env bash
# Redisson: a free fair lock is kept for a killed waiter for minutes, instead of the documented five seconds.
#
# Versions: Redisson 4.7.0 on Redis 7.0.
# Expected: the documentation of the fair lock: if a waiting client has died, Redisson waits five seconds for its return.
# Seen:     a client in another process waits for the lock and is killed. The holder unlocks. Nobody holds the lock, and a third client
#           that waits for 30 s does not get it. The place of the dead client expires after five minutes.
# Locks:    each waiter that is killed or redeployed stops all work under the lock for five minutes.
# Holdfast: the place of a dead waiter delays the next one by about a second, and expires.
# Output:   redisson-fair-lock-waits-for-dead: as stated: waiter killed, holder unlocked, locked false; third acquired within 30 s: false
. "$(dirname "$0")/lib.sh"
start_redis
export REDIS="redis://127.0.0.1:$redis_port"
seen=$(run_java org.redisson:redisson:4.7.0 <<'JAVA'
import static java.util.concurrent.TimeUnit.SECONDS;

import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

public class Main {
    static RedissonClient open() {
        Config config = new Config();
        config.useSingleServer().setAddress(System.getenv("REDIS")).setConnectionMinimumIdleSize(1);
        return Redisson.create(config);
    }

    public static void main(String[] args) throws Exception {
        RedissonClient client = open();
        RLock lock = client.getFairLock("job");
        if (args.length > 0) { // the waiter
            lock.lock();
            return;
        }
        lock.lock();
        Process waiter = new ProcessBuilder("java", "-Xmx128m", "-cp", System.getProperty("java.class.path"), "Main", "waits").start();
        while (client.getList("redisson_lock_queue:{job}").size() == 0) {
            Thread.sleep(100);
        }
        waiter.destroyForcibly().waitFor();
        lock.unlock();
        System.out.print("waiter killed, holder unlocked, locked " + lock.isLocked());
        System.out.println("; third acquired within 30 s: " + open().getFairLock("job").tryLock(30, SECONDS));
        System.exit(0);
    }
}
JAVA
)
verdict 'waiter killed, holder unlocked, locked false; third acquired within 30 s: false' "$seen" "$redis_version, Redisson 4.7.0"
