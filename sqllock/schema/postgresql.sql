-- Version 1 of the tables that package sqllock works with, for PostgreSQL 11 or newer. They are not those of package postgres. Times
-- are µs since 1970, of the server's clock.

-- A row for each name that was ever locked. Rows stay: they have the token.
CREATE TABLE IF NOT EXISTS holdfast_lock (
	name    text COLLATE "C" NOT NULL PRIMARY KEY,
	stamp   bigint NOT NULL,           -- drawn anew at each change: a statement that was decided by an older one changes nothing
	token   bigint NOT NULL,           -- the first of those that the last grant has
	owner   text COLLATE "C" NOT NULL, -- who has the lock; empty: nobody; with a ! at its end: who has released it, and it stands until it lapses (MinHold)
	holder  text NOT NULL,             -- the same for people, as JSON
	since   bigint NOT NULL,           -- when it was granted
	expires bigint NOT NULL,           -- when it lapses
	places  bigint NOT NULL            -- how many places in the queue were given
) WITH (fillfactor = 70);

-- A row for each attempt that waits.
CREATE TABLE IF NOT EXISTS holdfast_ticket (
	name    text COLLATE "C" NOT NULL,
	owner   text COLLATE "C" NOT NULL,
	place   bigint NOT NULL, -- in the order of arrival
	holder  text NOT NULL,
	expires bigint NOT NULL, -- when it lapses unless its client polls
	PRIMARY KEY (name, owner)
);
CREATE INDEX IF NOT EXISTS holdfast_ticket_place ON holdfast_ticket (name, place);
CREATE INDEX IF NOT EXISTS holdfast_ticket_expires ON holdfast_ticket (expires);

CREATE TABLE IF NOT EXISTS holdfast_version (version integer NOT NULL PRIMARY KEY);
INSERT INTO holdfast_version (version) VALUES (1) ON CONFLICT DO NOTHING;
