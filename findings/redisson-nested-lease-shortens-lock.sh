#!/usr/bin/env bash
# Redisson: a nested lock with a lease, even after its unlock, ends the outer lock that the watchdog renews.
#
# Versions: Redisson 4.7.0 on Redis 7.0.
# Expected: the documentation: a lock that was taken without a lease is prolonged while its holder is alive. An RLock is reentrant: its
#           thread may take it again, and has it until it has unlocked as often as it locked.
# Seen:     the thread takes the lock, takes it again for two seconds, and unlocks once. The key keeps a TTL of two seconds, and the
#           watchdog comes too late. Another client gets the lock while the first has not unlocked the outer one.
# Locks:    a helper that locks with a lease, called by a holder of the lock, lets a second holder in.
# Holdfast: a nested call shares the lease of the outermost call, and does not change it.
# Output:   redisson-nested-lease-shortens-lock: as stated: without nesting: other acquired false; nested and unlocked once: other acquired true, first still holds false, its unlock: IllegalMonitorStateException
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
        RedissonClient first = open(), other = open();
        RLock plain = first.getLock("plain");
        plain.lock();
        System.out.print("without nesting: other acquired " + other.getLock("plain").tryLock(8, SECONDS));
        plain.unlock();
        RLock outer = first.getLock("job");
        outer.lock();
        outer.lock(2, SECONDS);
        outer.unlock();
        System.out.print("; nested and unlocked once: other acquired " + other.getLock("job").tryLock(8, SECONDS));
        System.out.print(", first still holds " + outer.isHeldByCurrentThread());
        try {
            outer.unlock();
            System.out.println(", its unlock: no error");
        } catch (RuntimeException e) {
            System.out.println(", its unlock: " + e.getClass().getSimpleName());
        }
        System.exit(0);
    }
}
JAVA
)
verdict 'without nesting: other acquired false; nested and unlocked once: other acquired true, first still holds false, its unlock: IllegalMonitorStateException' \
  "$seen" "$redis_version, Redisson 4.7.0"
