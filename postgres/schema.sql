-- Version 4 of the tables and functions that package postgres works with, in the schema holdfast. Migrate runs this text in one
-- transaction; it may be run again. Everything that happens to a lock happens under the lock on its row.

-- IF NOT EXISTS would need the right to create schemas also where this one is there.
DO 'BEGIN IF NOT EXISTS (SELECT FROM pg_namespace WHERE nspname = ''holdfast'') THEN CREATE SCHEMA holdfast; END IF; END';

-- A row for each name that was ever locked. Rows stay: they have the token.
CREATE TABLE IF NOT EXISTS holdfast.lock (
	name    text COLLATE "C" PRIMARY KEY,
	token   bigint NOT NULL,      -- the first of the 32 that the last grant has
	owner   text COLLATE "C",     -- who has the lock; NULL: nobody; with a ! at its end: who has released it, and it stands until it lapses (MinHold)
	holder  jsonb,                -- the same for people
	since   timestamptz NOT NULL, -- when it was granted
	expires timestamptz NOT NULL, -- when it lapses; of a free lock: until when it is kept for whoever comes through the turnstile
	queued  boolean NOT NULL      -- whether there may be a ticket, so that one statement of a client is not enough
) WITH (fillfactor = 70);

-- A row for each attempt that waits. One that was given up while a statement of it could still be under way, or that lost the lock by
-- force, adoption or time, has one for a while, too.
CREATE TABLE IF NOT EXISTS holdfast.ticket (
	name    text COLLATE "C" NOT NULL,
	owner   text COLLATE "C" NOT NULL,
	place   bigint GENERATED ALWAYS AS IDENTITY, -- in the order of arrival, drawn under the lock on the row of the name
	channel text,                                -- where its client listens, with - in front while it blocks at the turnstile, + once it is through; NULL: it polls
	grace   bigint NOT NULL DEFAULT 0,           -- for how many µs a hand-over to it stands until it confirms
	holder  jsonb,
	expires timestamptz NOT NULL,
	gone    boolean NOT NULL DEFAULT false,      -- given up or taken from: it never gets the lock, nor a place
	PRIMARY KEY (name, owner)
);
CREATE INDEX IF NOT EXISTS ticket_expires ON holdfast.ticket (expires);

-- A busy name makes a dead row with each turn, however many names are at rest: a fifth of the whole table is too late for it.
ALTER TABLE holdfast.lock SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE holdfast.ticket SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

CREATE TABLE IF NOT EXISTS holdfast.version (version integer NOT NULL);
ALTER TABLE holdfast.version REPLICA IDENTITY FULL; -- where all tables are published, a row is deleted by that alone
DELETE FROM holdfast.version;
INSERT INTO holdfast.version VALUES (4);

-- Returns how many wait for a name. This function, bury and queue are in PL/pgSQL, which keeps its plans: an SQL function that the server
-- cannot inline is parsed and planned at each call.
CREATE OR REPLACE FUNCTION holdfast.waiters(p_name text) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
BEGIN
	RETURN (SELECT count(*) FROM holdfast.ticket WHERE name = p_name AND NOT gone AND expires > clock_timestamp());
END $$;

-- Returns the key of the advisory lock of a name, the turnstile. Waiters block in it for a moment, and come through in the order of
-- their arrival. It is a hint: whoever has it may look at the row next, and the row alone decides. Two names with one key cost time.
CREATE OR REPLACE FUNCTION holdfast.turnstile(p_name text) RETURNS bigint LANGUAGE sql STABLE AS $$
	SELECT hashtextextended(p_name, 'holdfast.lock'::regclass::oid::bigint)
$$;

-- Returns the oldest ticket of a name, or no row.
CREATE OR REPLACE FUNCTION holdfast.first(p_name text) RETURNS SETOF holdfast.ticket LANGUAGE sql STABLE AS $$
	SELECT * FROM holdfast.ticket WHERE name = p_name AND NOT gone AND expires > clock_timestamp() ORDER BY place LIMIT 1
$$;

-- Tells a client that it is the turn of its attempt, and says whether it could be told: not where it polls, nor while the queue of
-- notifications of the whole server is nearly full, as a statement that finds it full fails. Some session that listens to anything
-- then hangs in a transaction.
CREATE OR REPLACE FUNCTION holdfast.told(p_channel text, p_owner text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	IF coalesce(ltrim(p_channel, '+-'), '') = '' OR pg_notification_queue_usage() > 0.9 THEN
		RETURN false;
	END IF;
	PERFORM pg_notify(ltrim(p_channel, '+-'), p_owner);
	RETURN true;
END $$;

-- Has p_owner never get the lock, nor a place. The caller has locked the row, and then has queued say that there is a ticket. What is
-- kept is nobody's already.
CREATE OR REPLACE FUNCTION holdfast.bury(p_name text, p_owner text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO holdfast.ticket (name, owner, expires, gone)
		SELECT p_name, p_owner, clock_timestamp() + interval '10 minutes', true WHERE p_owner NOT LIKE '%!'
		ON CONFLICT (name, owner) DO UPDATE SET gone = true, expires = excluded.expires;
END $$;

-- Gives the lock to the first that waits, or to nobody. The caller has locked the row.
CREATE OR REPLACE FUNCTION holdfast.pass(p_name text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	at timestamptz := clock_timestamp();
	l  holdfast.lock;
	t  holdfast.ticket;
BEGIN
	-- A transaction that relies on the lease (Fenced) ends before the lock passes on. The first that can be told hears that the lease
	-- is over, and looks often from then on.
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
		-- Whoever blocks at the turnstile comes through by itself, and the lock is kept for it, unless one is through already and waits
		-- for the row. If nobody has come in time, the lock is free without an owner, and is handed to the first like any other.
		SELECT * INTO t FROM holdfast.ticket w
			WHERE w.name = p_name AND NOT w.gone AND w.expires > at AND w.channel LIKE '+%' ORDER BY w.place LIMIT 1;
	END IF;
	IF t.owner IS NOT NULL THEN
		DELETE FROM holdfast.ticket WHERE name = p_name AND owner = t.owner;
		IF NOT holdfast.told(t.channel, t.owner) AND ltrim(t.channel, '+-') <> '' THEN
			t.grace := 3 * t.grace; -- it asks every two seconds
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

-- The first token of the grant after the one that has p_token. It follows the clock as well, so that a row that was lost, with a
-- replica that lagged or by a purge, begins above what went before. An SQL function that is declared more constant than its body is
-- not inlined.
CREATE OR REPLACE FUNCTION holdfast.next(p_token bigint, p_at timestamptz) RETURNS bigint LANGUAGE sql STABLE AS $$
	SELECT greatest(p_token + 32, (extract(epoch FROM p_at) * 1000000)::bigint)
$$;

-- Takes the lock (o_token), or says who has it and, with p_wait, queues up. It may be repeated: an owner that has the lock keeps the
-- token, and has it for p_ttl µs from now, or for longer if it had. A place in the queue lasts p_place µs. It is for what clients
-- cannot do in a statement of their own, which is to take a lock that is free or was handed to them. There is a row for the name.
-- A p_channel with a + in front is that of a client whose session has the turnstile.
CREATE OR REPLACE FUNCTION holdfast.acquire(
	p_name text, p_owner text, p_ttl bigint, p_holder jsonb, p_wait boolean, p_channel text, p_grace bigint, p_place bigint,
	OUT o_token bigint, OUT o_owner text, OUT o_holder jsonb, OUT o_age bigint, OUT o_left bigint, OUT o_waiters bigint
) LANGUAGE plpgsql AS $$
DECLARE
	at timestamptz := clock_timestamp();
	l  holdfast.lock;
	t  holdfast.ticket; -- its own
	f  holdfast.ticket; -- the first
	through boolean := coalesce(p_channel LIKE '+%', false);
	denied boolean := false;
	free boolean := false;
BEGIN
	-- Most denials change nothing, and lock nothing: also those of a lock that has lapsed, while its row is in use. That is so for as
	-- long as a transaction outlives the lease on which it relies, and each place in the queue can ask again.
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
				-- It is kept for those who come through the turnstile, if there are any.
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
		-- A place that a crash undoes is asked for again, and what was handed to another is confirmed, as after a release.
		PERFORM set_config('synchronous_commit', 'off', true);
	END IF;
	o_owner := l.owner;
	o_holder := l.holder;
	o_age := extract(epoch FROM at - l.since) * 1000000;
	o_left := extract(epoch FROM l.expires - at) * 1000000;
	o_waiters := holdfast.waiters(p_name);
END $$;

-- Blocks at the turnstile until this session is through, and then takes the lock as acquire does, or queues up. The session has the
-- turnstile then, until it leaves; o_blocked reports whether it had to wait for that. o_blocked is NULL if lock_timeout ended the wait,
-- which bounds how long the snapshot of this statement keeps dead rows from being cleaned up. Its ticket then notes at once that nothing
-- blocks any more: until its client does that, those behind would come through before it.
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
	-- The one before has left the turnstile in the statement that frees the row, before that is committed: this waits for the commit.
	-- While an old snapshot keeps dead versions of the row, a search by name visits each of them, so there is one search.
	SELECT owner IS NULL AND NOT queued, ctid INTO free, place FROM holdfast.lock WHERE name = p_name FOR NO KEY UPDATE;
	IF NOT FOUND THEN -- the row was purged; the client asks for it to be made
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

-- Releases the lock as release does, and leaves the turnstile, which this session has.
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

-- Gives p_owner a place in the queue, or keeps its place. The caller has locked the row. For a new place the row changes even if it is
-- marked already, and so it does for a new channel: if the isolation is stricter than READ COMMITTED, a release whose snapshot is older
-- does not see the ticket as it is, and is refused, and so repeated, only because the row is another.
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

-- Takes the lock over from p_from. It may be repeated, and then does not shorten what p_owner has. NULL: p_from has it no more; 0: a
-- transaction relies on its lease.
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

-- Frees the lock if p_owner has it, now or p_keep µs from now, and gives up its place in the queue. A lock that is kept is nobody's:
-- no owner has a name with a ! at its end, so nothing that p_owner has sent prolongs or continues it. With p_keep below 0 it stays p_owner's.
-- p_bury says that a statement of p_owner may still be under way: it will find that p_owner is gone. It is for what clients cannot do
-- in a statement of their own, which is to free a lock for which nobody waits.
CREATE OR REPLACE FUNCTION holdfast.release(p_name text, p_owner text, p_keep bigint, p_bury boolean) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	at timestamptz := clock_timestamp();
	l  holdfast.lock;
BEGIN
	IF p_keep = 0 THEN
		-- Where a crash undoes the release the lock lapses; no one need wait for the disk, or for a replica. Who it is handed
		-- to confirms with a transaction that does, and that comes later in the log.
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

-- Takes the lock from its holder, if p_token is one of the holder's, and says whether it was. One that is kept has the token 0.
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
