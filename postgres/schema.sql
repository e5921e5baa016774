-- Version 4 of the tables and functions that package postgres works with, in the schema holdfast. Migrate runs this text in one
-- transaction, and may run it again. Every change of a lock holds the row lock on its row.

-- CREATE SCHEMA IF NOT EXISTS would need the permission to create schemas even if this one exists.
DO 'BEGIN IF NOT EXISTS (SELECT FROM pg_namespace WHERE nspname = ''holdfast'') THEN CREATE SCHEMA holdfast; END IF; END';

-- One row for each name that was ever locked. Rows are never deleted, because they keep the token.
CREATE TABLE IF NOT EXISTS holdfast.lock (
	name    text COLLATE "C" PRIMARY KEY,
	token   bigint NOT NULL,      -- first of the 32 tokens of the last grant
	owner   text COLLATE "C",     -- owner of the lock; NULL: none; ending in !: the owner has released the lock, and MinHold keeps it until it expires
	holder  jsonb,                -- description of the owner for people
	since   timestamptz NOT NULL, -- time of the grant
	expires timestamptz NOT NULL, -- end of the lease; of a free lock: end of the time for which it is kept for the next waiter at the turnstile
	queued  boolean NOT NULL      -- true: there may be a ticket, so a client has to call a function instead of sending one UPDATE
) WITH (fillfactor = 70);

-- One row for each waiting attempt. An attempt also keeps a row for a while if it gave up while a statement of it could still be
-- executed, or if it lost the lock by force, adoption or expiry.
CREATE TABLE IF NOT EXISTS holdfast.ticket (
	name    text COLLATE "C" NOT NULL,
	owner   text COLLATE "C" NOT NULL,
	place   bigint GENERATED ALWAYS AS IDENTITY, -- position in the queue, in the order of arrival; taken under the row lock of the name
	channel text,                                -- channel on which its client listens; begins with - while the client blocks at the turnstile, with + once it has passed; NULL: the client polls
	grace   bigint NOT NULL DEFAULT 0,           -- µs for which a hand-over to this attempt is kept until the attempt confirms it
	holder  jsonb,
	expires timestamptz NOT NULL,
	gone    boolean NOT NULL DEFAULT false,      -- the attempt has given up or lost the lock: it never gets the lock or a place again
	PRIMARY KEY (name, owner)
);
CREATE INDEX IF NOT EXISTS ticket_expires ON holdfast.ticket (expires);

-- Each hand-over of a busy name leaves a dead row, even if most names are idle. The default, to vacuum when a fifth of the whole table
-- is dead, would be too late.
ALTER TABLE holdfast.lock SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE holdfast.ticket SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

CREATE TABLE IF NOT EXISTS holdfast.version (version integer NOT NULL);
ALTER TABLE holdfast.version REPLICA IDENTITY FULL; -- a publication of all tables accepts a DELETE only with a replica identity
DELETE FROM holdfast.version;
INSERT INTO holdfast.version VALUES (4);

-- Returns the number of waiters for a name. This function, bury and queue are in PL/pgSQL, which caches its plans: the server parses and
-- plans an SQL function at each call if it cannot inline the function.
CREATE OR REPLACE FUNCTION holdfast.waiters(p_name text) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
BEGIN
	RETURN (SELECT count(*) FROM holdfast.ticket WHERE name = p_name AND NOT gone AND expires > clock_timestamp());
END $$;

-- Returns the key of the turnstile of a name, an advisory lock. Waiters block in it for a moment, and pass in the order of their
-- arrival. The turnstile is a hint: its holder reads the row next, and the row alone decides. Two names with the same key only cost time.
CREATE OR REPLACE FUNCTION holdfast.turnstile(p_name text) RETURNS bigint LANGUAGE sql STABLE AS $$
	SELECT hashtextextended(p_name, 'holdfast.lock'::regclass::oid::bigint)
$$;

-- Returns the oldest ticket of a name, or no row.
CREATE OR REPLACE FUNCTION holdfast.first(p_name text) RETURNS SETOF holdfast.ticket LANGUAGE sql STABLE AS $$
	SELECT * FROM holdfast.ticket WHERE name = p_name AND NOT gone AND expires > clock_timestamp() ORDER BY place LIMIT 1
$$;

-- Notifies the client of an attempt that it is next, and reports whether it did. It notifies no client that polls, and none while the
-- server's queue of notifications is nearly full, because NOTIFY fails if the queue is full. The queue fills up if a session that
-- listens hangs in a transaction.
CREATE OR REPLACE FUNCTION holdfast.told(p_channel text, p_owner text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	IF coalesce(ltrim(p_channel, '+-'), '') = '' OR pg_notification_queue_usage() > 0.9 THEN
		RETURN false;
	END IF;
	PERFORM pg_notify(ltrim(p_channel, '+-'), p_owner);
	RETURN true;
END $$;

-- Marks p_owner as gone, so that it never gets the lock or a place again. The caller has locked the row, and afterwards sets queued. A
-- lock that MinHold keeps needs no mark, because it has no owner.
CREATE OR REPLACE FUNCTION holdfast.bury(p_name text, p_owner text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO holdfast.ticket (name, owner, expires, gone)
		SELECT p_name, p_owner, clock_timestamp() + interval '10 minutes', true WHERE p_owner NOT LIKE '%!'
		ON CONFLICT (name, owner) DO UPDATE SET gone = true, expires = excluded.expires;
END $$;

-- Gives the lock to the first waiter, or frees it. The caller has locked the row.
CREATE OR REPLACE FUNCTION holdfast.pass(p_name text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	at timestamptz := clock_timestamp();
	l  holdfast.lock;
	t  holdfast.ticket;
BEGIN
	-- If a transaction relies on the lease (FenceTx), the lock passes on only after that transaction. The first waiter that can be notified
	-- is told that the lease is over, and polls often from then on.
	SELECT * INTO l FROM holdfast.lock WHERE name = p_name FOR UPDATE SKIP LOCKED;
	IF NOT FOUND THEN
		UPDATE holdfast.lock SET expires = at WHERE name = p_name AND expires > at;
		IF FOUND THEN
			PERFORM holdfast.told(w.channel, w.owner) FROM (SELECT * FROM holdfast.ticket f WHERE f.name = p_name AND NOT f.gone
				AND f.expires > at AND ltrim(f.channel, '+-') <> '' ORDER BY f.place LIMIT 1) w;
		END IF;
		RETURN;
	END IF;
	SELECT * INTO t FROM holdfast.first(p_name);
	IF t.channel LIKE '-%' AND l.owner IS NOT NULL THEN
		-- A waiter that blocks at the turnstile passes by itself, and the lock is kept for it, unless another has passed already and waits
		-- for the row. If none passes in time, the lock is free, and is handed to the first waiter as usual.
		SELECT * INTO t FROM holdfast.ticket w
			WHERE w.name = p_name AND NOT w.gone AND w.expires > at AND w.channel LIKE '+%' ORDER BY w.place LIMIT 1;
	END IF;
	IF t.owner IS NOT NULL THEN
		DELETE FROM holdfast.ticket WHERE name = p_name AND owner = t.owner;
		IF NOT holdfast.told(t.channel, t.owner) AND ltrim(t.channel, '+-') <> '' THEN
			t.grace := 3 * t.grace; -- its client polls every two seconds
		END IF;
		UPDATE holdfast.lock SET token = holdfast.next(token, at), owner = t.owner, holder = t.holder, since = at,
			expires = at + t.grace * interval '1 microsecond',
			queued = EXISTS (SELECT FROM holdfast.ticket w WHERE w.name = p_name) WHERE name = p_name;
	ELSE
		DELETE FROM holdfast.ticket WHERE name = p_name AND expires <= at;
		UPDATE holdfast.lock SET owner = NULL, holder = NULL, expires = at + interval '200 milliseconds',
			queued = EXISTS (SELECT FROM holdfast.ticket w WHERE w.name = p_name) WHERE name = p_name;
	END IF;
END $$;

-- Returns the first token of the next grant after the grant with p_token. It also follows the clock, so that tokens still rise after a row
-- was lost by a failover to a replica that lagged, or by a purge. The function is STABLE, because an SQL function that is declared less
-- volatile than its body is not inlined.
CREATE OR REPLACE FUNCTION holdfast.next(p_token bigint, p_at timestamptz) RETURNS bigint LANGUAGE sql STABLE AS $$
	SELECT greatest(p_token + 32, (extract(epoch FROM p_at) * 1000000)::bigint)
$$;

-- Takes the lock and returns its token (o_token), or returns the holder and, with p_wait, queues up. It may be repeated: an owner that has
-- the lock keeps the token, and keeps the lock for p_ttl µs from now, or for longer if its lease lasts longer. A place in the queue lasts
-- p_place µs. Clients take a lock that is free or was handed to them by one UPDATE, and call this function otherwise. The row of the name
-- exists. A p_channel that begins with + belongs to a client whose session has the turnstile.
CREATE OR REPLACE FUNCTION holdfast.acquire(
	p_name text, p_owner text, p_ttl bigint, p_holder jsonb, p_wait boolean, p_channel text, p_grace bigint, p_place bigint,
	OUT o_token bigint, OUT o_owner text, OUT o_holder jsonb, OUT o_age bigint, OUT o_left bigint, OUT o_waiters bigint
) LANGUAGE plpgsql AS $$
DECLARE
	at timestamptz := clock_timestamp();
	l  holdfast.lock;
	t  holdfast.ticket; -- ticket of p_owner
	f  holdfast.ticket; -- first ticket in the queue
	through boolean := coalesce(p_channel LIKE '+%', false);
	denied boolean := false;
	free boolean := false;
BEGIN
	-- Most denials change and lock nothing. That also holds for a lock that has expired while its row is locked: a transaction that relies
	-- on the lease may outlive it for long, and each waiter asks again meanwhile.
	SELECT * INTO l FROM holdfast.lock WHERE name = p_name;
	IF l.owner <> p_owner THEN
		denied := l.expires > at;
		IF p_wait THEN
			denied := EXISTS (
				SELECT FROM holdfast.ticket w WHERE w.name = p_name AND w.owner = p_owner AND NOT w.gone
					AND w.channel IS NOT DISTINCT FROM p_channel AND w.expires > at + p_place / 2 * interval '1 microsecond');
			IF denied AND l.expires <= at THEN
				PERFORM FROM holdfast.lock WHERE name = p_name FOR UPDATE SKIP LOCKED;
				denied := NOT FOUND;
			END IF;
		END IF;
	END IF;
	IF NOT denied THEN
		SELECT * INTO STRICT l FROM holdfast.lock WHERE name = p_name FOR NO KEY UPDATE;
		SELECT * INTO t FROM holdfast.ticket WHERE name = p_name AND owner = p_owner;
		at := clock_timestamp();
		IF t.gone THEN
			RETURN;
		END IF;
		IF l.owner <> p_owner AND l.expires <= at THEN
			PERFORM holdfast.bury(p_name, l.owner);
			PERFORM holdfast.pass(p_name);
			SELECT * INTO l FROM holdfast.lock WHERE name = p_name;
		END IF;
		IF l.owner IS NULL THEN
			SELECT * INTO f FROM holdfast.first(p_name);
			IF l.expires > at + interval '1 second' THEN -- the clock was set back
				l.expires := at;
			END IF;
			free := CASE
				WHEN through AND (f.owner IS NULL OR f.channel LIKE '-%') OR f.owner = p_owner THEN true
				-- The lock is kept for waiters at the turnstile, if there are any.
				WHEN f.owner IS NULL THEN l.expires <= at OR pg_try_advisory_xact_lock(holdfast.turnstile(p_name))
				ELSE false
			END;
			IF NOT free AND f.owner IS NOT NULL AND (f.channel LIKE '-%' AND l.expires > at) IS NOT TRUE THEN
				PERFORM holdfast.pass(p_name);
				SELECT * INTO l FROM holdfast.lock WHERE name = p_name;
			END IF;
		END IF;
		IF free OR l.owner = p_owner THEN
			UPDATE holdfast.lock SET
				token = CASE WHEN owner = p_owner THEN token ELSE holdfast.next(token, at) END,
				since = CASE WHEN owner = p_owner THEN since ELSE at END,
				owner = p_owner, holder = p_holder,
				expires = greatest(at + p_ttl * interval '1 microsecond', CASE WHEN owner = p_owner THEN expires END)
				WHERE name = p_name RETURNING token INTO o_token;
			IF t.owner IS NOT NULL THEN
				DELETE FROM holdfast.ticket WHERE name = p_name AND owner = p_owner;
			END IF;
			RETURN;
		END IF;
		IF p_wait THEN
			PERFORM holdfast.queue(p_name, p_owner, p_holder, p_channel, p_grace, at + p_place * interval '1 microsecond');
		END IF;
		-- A client asks again for a place that a crash undoes, and confirms a hand-over by a durable transaction, as after a release.
		PERFORM set_config('synchronous_commit', 'off', true);
	END IF;
	o_owner := l.owner;
	o_holder := l.holder;
	o_age := extract(epoch FROM at - l.since) * 1000000;
	o_left := extract(epoch FROM l.expires - at) * 1000000;
	o_waiters := holdfast.waiters(p_name);
END $$;

-- Blocks until this session has the turnstile, and then takes the lock as acquire does, or queues up. The session keeps the turnstile until
-- it calls leave. o_blocked reports whether the session had to wait. It is NULL if lock_timeout ended the wait; that bounds the time for
-- which the snapshot of this statement holds back vacuum. The ticket then records at once that nothing blocks any more: otherwise later
-- waiters would pass first, until the client records it.
CREATE OR REPLACE FUNCTION holdfast.enter(
	p_name text, p_owner text, p_ttl bigint, p_holder jsonb, p_grace bigint, p_place bigint,
	OUT o_blocked boolean, OUT o_token bigint, OUT o_owner text, OUT o_holder jsonb, OUT o_age bigint, OUT o_left bigint, OUT o_waiters bigint
) LANGUAGE plpgsql AS $$
DECLARE
	at    timestamptz;
	free  boolean;
	place tid;
BEGIN
	o_blocked := false;
	IF NOT pg_try_advisory_lock(holdfast.turnstile(p_name)) THEN
		BEGIN
			PERFORM pg_advisory_lock(holdfast.turnstile(p_name));
		EXCEPTION WHEN lock_not_available THEN
			UPDATE holdfast.ticket SET channel = ltrim(channel, '-') WHERE name = p_name AND owner = p_owner AND channel LIKE '-%';
			o_blocked := NULL;
			RETURN;
		END;
		o_blocked := true;
	END IF;
	-- The last holder has left the turnstile in the statement that frees the row, before its commit. This statement waits for the commit.
	-- While an old snapshot keeps dead versions of the row, a search by name visits each of them. So this function searches once.
	SELECT owner IS NULL AND NOT queued, ctid INTO free, place FROM holdfast.lock WHERE name = p_name FOR NO KEY UPDATE;
	IF NOT FOUND THEN -- the row was purged; the client inserts it and asks again
		o_waiters := 0;
		RETURN;
	END IF;
	IF free THEN
		at := clock_timestamp();
		UPDATE holdfast.lock SET token = holdfast.next(token, at), since = at, owner = p_owner, holder = p_holder,
			expires = at + p_ttl * interval '1 microsecond' WHERE ctid = place RETURNING token INTO o_token;
		RETURN;
	END IF;
	SELECT a.o_token, a.o_owner, a.o_holder, a.o_age, a.o_left, a.o_waiters INTO o_token, o_owner, o_holder, o_age, o_left, o_waiters
		FROM holdfast.acquire(p_name, p_owner, p_ttl, p_holder, true, '+', p_grace, p_place) a;
END $$;

-- Releases the lock as release does, and frees the turnstile, which this session holds.
CREATE OR REPLACE FUNCTION holdfast.leave(p_name text, p_owner text, p_keep bigint, p_bury boolean) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	at timestamptz := clock_timestamp();
BEGIN
	IF p_keep = 0 AND NOT p_bury THEN
		UPDATE holdfast.lock SET owner = NULL, holder = NULL, expires = at + interval '200 milliseconds' WHERE ctid = (
			SELECT ctid FROM holdfast.lock WHERE name = p_name AND owner = p_owner AND NOT queued FOR UPDATE SKIP LOCKED);
	END IF;
	IF FOUND THEN
		PERFORM set_config('synchronous_commit', 'off', true);
	ELSE
		PERFORM holdfast.release(p_name, p_owner, p_keep, p_bury);
	END IF;
	PERFORM pg_advisory_unlock(holdfast.turnstile(p_name));
END $$;

-- Gives p_owner a place in the queue, or prolongs its place. The caller has locked the row. A new place or a new channel updates the row
-- even if queued is already set: at an isolation above READ COMMITTED, a release with an older snapshot does not see the ticket, and only
-- the changed row makes the server reject that release, so that it is repeated.
CREATE OR REPLACE FUNCTION holdfast.queue(p_name text, p_owner text, p_holder jsonb, p_channel text, p_grace bigint, p_expires timestamptz)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	UPDATE holdfast.lock SET queued = true WHERE name = p_name
		AND (NOT queued OR NOT EXISTS (SELECT FROM holdfast.ticket WHERE name = p_name AND owner = p_owner
			AND (channel IS NOT DISTINCT FROM p_channel OR current_setting('transaction_isolation') = 'read committed')));
	DELETE FROM holdfast.ticket WHERE (name, owner) IN (
		SELECT w.name, w.owner FROM holdfast.ticket w WHERE w.expires <= clock_timestamp() AND w.owner <> p_owner FOR UPDATE SKIP LOCKED);
	INSERT INTO holdfast.ticket (name, owner, holder, channel, grace, expires)
		VALUES (p_name, p_owner, p_holder, p_channel, p_grace, p_expires)
		ON CONFLICT (name, owner) DO UPDATE SET channel = p_channel, grace = p_grace, expires = p_expires;
END $$;

-- Takes the lock over from p_from and returns the new token. It may be repeated, and then does not shorten the lease of p_owner. NULL:
-- p_from no longer has the lock; 0: a transaction relies on its lease.
CREATE OR REPLACE FUNCTION holdfast.adopt(p_name text, p_from text, p_owner text, p_ttl bigint, p_holder jsonb) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	at timestamptz;
	l  holdfast.lock;
BEGIN
	SELECT * INTO l FROM holdfast.lock WHERE name = p_name FOR NO KEY UPDATE;
	at := clock_timestamp();
	IF l.owner = p_owner AND l.expires > at THEN
		at := greatest(at, l.expires - p_ttl * interval '1 microsecond');
	ELSIF l.owner = p_from AND l.expires > at AND NOT EXISTS (
		SELECT FROM holdfast.ticket WHERE name = p_name AND owner = p_owner AND gone) THEN
		PERFORM FROM holdfast.lock WHERE name = p_name FOR UPDATE SKIP LOCKED;
		IF NOT FOUND THEN
			RETURN 0;
		END IF;
		l.token := holdfast.next(l.token, at);
		l.since := at;
		PERFORM holdfast.bury(p_name, p_from);
		l.queued := true;
	ELSE
		RETURN NULL;
	END IF;
	UPDATE holdfast.lock SET token = l.token, owner = p_owner, holder = p_holder, since = l.since,
		expires = at + p_ttl * interval '1 microsecond', queued = l.queued
		WHERE name = p_name;
	RETURN l.token;
END $$;

-- Frees the lock of p_owner, now or after p_keep µs, and gives up its place in the queue. A lock that is kept has no owner: no owner's name
-- ends in !, so no earlier statement of p_owner prolongs or continues it. With p_keep below 0, p_owner keeps the lock. p_bury marks p_owner
-- as gone, because a statement of p_owner may still be executed. Clients free a lock without waiters by one UPDATE, and call this function
-- otherwise.
CREATE OR REPLACE FUNCTION holdfast.release(p_name text, p_owner text, p_keep bigint, p_bury boolean) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	at timestamptz := clock_timestamp();
	l  holdfast.lock;
BEGIN
	IF p_keep = 0 THEN
		-- If a crash undoes the release, the lock expires, so nobody has to wait for the disk or a replica. The next holder confirms the
		-- hand-over in a transaction that waits for both, and that is later in the log.
		PERFORM set_config('synchronous_commit', 'off', true);
	END IF;
	IF p_bury THEN
		INSERT INTO holdfast.lock VALUES (p_name, 0, NULL, NULL, at, at, true) ON CONFLICT (name) DO UPDATE SET queued = true;
	END IF;
	SELECT * INTO l FROM holdfast.lock WHERE name = p_name FOR NO KEY UPDATE;
	at := clock_timestamp();
	IF p_bury THEN
		PERFORM holdfast.bury(p_name, p_owner);
	ELSE
		DELETE FROM holdfast.ticket WHERE name = p_name AND owner = p_owner AND NOT gone;
	END IF;
	IF l.owner = p_owner AND p_keep = 0 THEN
		PERFORM holdfast.pass(p_name);
	ELSIF l.owner = p_owner AND l.expires > at AND p_keep > 0 THEN
		UPDATE holdfast.lock SET owner = p_owner || '!', expires = at + p_keep * interval '1 microsecond' WHERE name = p_name;
	END IF;
END $$;

-- Takes the lock from its holder if p_token belongs to the holder's grant, and reports whether it did. A lock that MinHold keeps has the
-- token 0.
CREATE OR REPLACE FUNCTION holdfast.force(p_name text, p_token bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
	l holdfast.lock;
BEGIN
	SELECT * INTO l FROM holdfast.lock WHERE name = p_name FOR NO KEY UPDATE;
	IF l.owner IS NULL OR l.expires <= clock_timestamp()
		OR NOT (CASE WHEN l.owner LIKE '%!' THEN p_token = 0 ELSE p_token BETWEEN l.token AND l.token + 32 - 1 END) THEN
		RETURN false;
	END IF;
	PERFORM holdfast.bury(p_name, l.owner);
	PERFORM holdfast.pass(p_name);
	RETURN true;
END $$;
