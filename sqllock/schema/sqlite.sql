-- Version 1 of the tables that package sqllock works with, for SQLite 3.35 or newer. Times are µs since 1970, of the machine's clock.

-- A row for each name that was ever locked. Rows stay: they have the token.
CREATE TABLE IF NOT EXISTS holdfast_lock (
	name    text    NOT NULL PRIMARY KEY,
	stamp   integer NOT NULL, -- drawn anew at each change: a statement that was decided by an older one changes nothing
	token   integer NOT NULL, -- the first of those that the last grant has
	owner   text    NOT NULL, -- who has the lock; empty: nobody; with a ! at its end: who has released it, and it stands until it lapses (MinHold)
	holder  text    NOT NULL, -- the same for people, as JSON
	since   integer NOT NULL, -- when it was granted
	expires integer NOT NULL, -- when it lapses
	places  integer NOT NULL  -- how many places in the queue were given
) WITHOUT ROWID;

-- A row for each attempt that waits.
CREATE TABLE IF NOT EXISTS holdfast_ticket (
	name    text    NOT NULL,
	owner   text    NOT NULL,
	place   integer NOT NULL, -- in the order of arrival
	holder  text    NOT NULL,
	expires integer NOT NULL, -- when it lapses unless its client polls
	PRIMARY KEY (name, owner)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS holdfast_ticket_place ON holdfast_ticket (name, place);
CREATE INDEX IF NOT EXISTS holdfast_ticket_expires ON holdfast_ticket (expires);

CREATE TABLE IF NOT EXISTS holdfast_version (version integer NOT NULL PRIMARY KEY);
INSERT INTO holdfast_version (version) VALUES (1) ON CONFLICT DO NOTHING;
