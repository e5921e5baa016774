-- Version 1 of the tables that package sqllock works with, for SQLite 3.35 or newer. Times are µs since 1970, of the machine's clock.

-- One row for each name that was ever locked. Rows are never deleted, because they keep the token.
CREATE TABLE IF NOT EXISTS holdfast_lock (
	name    text    NOT NULL PRIMARY KEY,
	stamp   integer NOT NULL, -- random, new at each change: a statement that names an older stamp changes nothing
	token   integer NOT NULL, -- first token of the last grant
	owner   text    NOT NULL, -- owner of the lock; empty: none; ending in !: the owner has released the lock, and MinHold keeps it until it expires
	holder  text    NOT NULL, -- description of the owner for people, as JSON
	since   integer NOT NULL, -- time of the grant
	expires integer NOT NULL, -- end of the lease
	places  integer NOT NULL  -- number of places that the queue has given out
) WITHOUT ROWID;

-- One row for each waiting attempt.
CREATE TABLE IF NOT EXISTS holdfast_ticket (
	name    text    NOT NULL,
	owner   text    NOT NULL,
	place   integer NOT NULL, -- position in the queue, in the order of arrival
	holder  text    NOT NULL,
	expires integer NOT NULL, -- end of the ticket, unless its client polls
	PRIMARY KEY (name, owner)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS holdfast_ticket_place ON holdfast_ticket (name, place);
CREATE INDEX IF NOT EXISTS holdfast_ticket_expires ON holdfast_ticket (expires);

CREATE TABLE IF NOT EXISTS holdfast_version (version integer NOT NULL PRIMARY KEY);
INSERT INTO holdfast_version (version) VALUES (1) ON CONFLICT DO NOTHING;
