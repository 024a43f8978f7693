-- Queries of those who look after the file, each with a name and a sentence on what it is for.

-- name: pages
-- How many pages the file has.
PRAGMA page_count;
-- name: free_pages
-- How many of them hold nothing.
PRAGMA freelist_count;
-- name: page_bytes
-- How large a page is.
PRAGMA page_size;
-- name: gives_back
-- 2 = free pages can be given back in steps.
PRAGMA auto_vacuum;
-- name: give_back
-- Give free pages back to the disk, at most as many as stand here: a few milliseconds.
PRAGMA incremental_vacuum(500);
-- name: to_give_back
-- From the next rewriting on free pages can be given back in steps.
PRAGMA auto_vacuum=INCREMENTAL;
-- name: rewrite
-- Write the whole file anew: no free page is left, and nothing of what was deleted.
VACUUM;
-- name: rewrite_on_disk
-- The file that is rewritten may be larger than memory.
PRAGMA temp_store=FILE;
-- name: overwrite
-- What is deleted is overwritten with zeros.
PRAGMA secure_delete=ON;
-- name: empty_wal
-- Copy the whole WAL into the file and cut it to nothing; the first column says that somebody is in the way.
PRAGMA wal_checkpoint(TRUNCATE);
-- name: wait_short
-- So long, in milliseconds, a checkpoint waits for readers; writers wait behind it.
PRAGMA busy_timeout=100;
-- name: wait_not
-- Ask again instead of waiting.
PRAGMA busy_timeout=0;
-- name: stained
-- Whether pages may hold what was erased: an erasure has begun, and the file was not rewritten since.
SELECT 1 FROM meta WHERE name = 'stained';
-- name: stain
-- Note that.
INSERT INTO meta (name, value) VALUES ('stained', 1) ON CONFLICT DO NOTHING;
-- name: unstain
-- The file was rewritten and its WAL emptied.
DELETE FROM meta WHERE name = 'stained';
-- name: copy_to
-- Write what the journal holds at this moment into a new file.
VACUUM INTO ?;
-- name: events
-- How many events there are.
SELECT count(*) FROM event;
-- name: subscriptions
-- All subscriptions.
SELECT id FROM subscription;
-- name: workers_forget
-- In a copy nobody works.
DELETE FROM worker;
-- name: members_forget
-- Nor serves.
DELETE FROM member;
