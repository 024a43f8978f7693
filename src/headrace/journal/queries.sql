-- All queries of the embedded journal, each with a name and a sentence on what it is for.

-- name: begin
-- Take the write lock at once: a deferred transaction that reads first cannot be upgraded when another process wrote.
BEGIN IMMEDIATE;
-- name: commit
-- Make the transaction durable and visible.
COMMIT;
-- name: rollback
-- Undo the transaction.
ROLLBACK;
-- name: savepoint
-- Mark a place to come back to, for one unit of a group.
SAVEPOINT unit;
-- name: savepoint_undo
-- Go back to the mark.
ROLLBACK TO unit;
-- name: savepoint_end
-- Forget the mark.
RELEASE unit;
-- name: data_version
-- A number that changes when another connection has committed.
PRAGMA data_version;
-- name: checkpoint
-- Move what is in the WAL into the file, without waiting for anybody.
PRAGMA wal_checkpoint(PASSIVE);
-- name: checkpoint_restart
-- Move the rest while nobody writes: the next who does begins the WAL anew.
PRAGMA wal_checkpoint(RESTART);
-- name: keep_wal
-- So many bytes of the WAL stay on disk when it begins anew: 64 MiB.
PRAGMA journal_size_limit=67108864;
-- name: keep_wal_short
-- The same where the disk has little room: 1 MiB.
PRAGMA journal_size_limit=1048576;

-- name: meta_set
-- Note a fact about the journal itself.
INSERT INTO meta (name, value) VALUES (?, ?) ON CONFLICT DO NOTHING;

-- name: topic_get
-- A topic by name.
SELECT id, name, partitions FROM topic WHERE name = ?;
-- name: topic_add
-- Create a topic.
INSERT INTO topic (name, uuid, partitions, created_us) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING;
-- name: topics
-- All topics.
SELECT id, name, partitions FROM topic ORDER BY name;
-- name: stamp_get
-- The number of a stamp.
SELECT id FROM stamp WHERE value = ?;
-- name: stamp_add
-- Intern a stamp.
INSERT INTO stamp (value) VALUES (?) ON CONFLICT DO NOTHING;
-- name: stamp_value
-- The stamp of a number.
SELECT value FROM stamp WHERE id = ?;

-- name: event_add
-- Append events; many rows at once (the values are repeated by the caller).
INSERT INTO event (tp, eid, cid, depth, head, body, sum) VALUES (?, ?, ?, ?, ?, ?, ?);
-- name: last_rowid
-- The offset that the last insert got.
SELECT last_insert_rowid();
-- name: event_copy
-- The stored event of an id in one topic, to compare a second publish with, or what is left of it.
SELECT seq, tp, head, body, cid, depth, '' FROM event WHERE eid = ?1 AND tp >> 10 = ?2
UNION ALL SELECT seq, tp, head, content, cid, depth, why FROM skeleton WHERE eid = ?1 AND tp >> 10 = ?2;
-- name: event_cause
-- What a child needs of its parent, or of what is left of it: offset, chain, depth, envelope.
SELECT seq, cid, depth, head FROM event WHERE eid = ?1
UNION ALL SELECT seq, cid, depth, head FROM skeleton WHERE eid = ?1 ORDER BY seq LIMIT 1;
-- name: event_last
-- The highest offset of all, or 0: where a subscription begins that wants only what is still to come.
SELECT coalesce(max(seq), 0) FROM event;

-- name: handler_get
-- A handler and its active version, by the name that it has or had.
SELECT id, active FROM handler WHERE name = ?1
UNION ALL SELECT handler.id, active FROM was JOIN handler ON handler.id = was.handler WHERE was.name = ?1 LIMIT 1;
-- name: handler_add
-- Make a handler known, unless one is known that had this name before.
INSERT INTO handler (name) SELECT ?1 WHERE NOT EXISTS (SELECT 1 FROM was WHERE name = ?1) ON CONFLICT DO NOTHING;
-- name: handler_activate
-- Make a version the one that takes events from now on.
UPDATE handler SET active = ? WHERE id = ?;
-- name: active
-- The version that a subscription takes events under: that of the replay, else the active one of its handler.
SELECT coalesce(replay.version, handler.active) FROM subscription JOIN handler ON handler.id = subscription.handler
LEFT JOIN replay ON replay.sub = subscription.id WHERE subscription.id = ?;
-- name: model_get
-- A model version by its bytes.
SELECT id FROM model WHERE name = ? AND digest = ?;
-- name: model_add
-- Give new bytes the next epoch of their name.
INSERT INTO model (name, epoch, declared, digest, offered_us)
VALUES (?1, (SELECT coalesce(max(epoch), 0) + 1 FROM model WHERE name = ?1), ?2, ?3, ?4) RETURNING id;
-- name: version_get
-- A handler version by what it is made of, and whether replays alone know it.
SELECT id, trial FROM version WHERE handler = ? AND declared = ? AND model = ?;
-- name: version_add
-- Make a handler version known.
INSERT INTO version (handler, declared, model, offered_us, trial) VALUES (?, ?, ?, ?, ?) RETURNING id;
-- name: version_live
-- A version is no longer known to replays alone.
UPDATE version SET trial = 0 WHERE id = ? AND trial = 1;
-- name: version_info
-- A handler version with its model, for people and for envelopes.
SELECT version.id, handler.name, version.declared, model.name, model.digest, model.epoch, model.declared
FROM version JOIN handler ON handler.id = version.handler LEFT JOIN model ON model.id = version.model
WHERE version.id = ?;
-- name: versions
-- All versions of a handler, oldest first.
SELECT version.id, handler.name, version.declared, model.name, model.digest, model.epoch, model.declared
FROM version JOIN handler ON handler.id = version.handler LEFT JOIN model ON model.id = version.model
WHERE handler.name = ? ORDER BY version.id;

-- name: subscription_get
-- The live subscription of a handler to a topic.
SELECT id FROM subscription WHERE handler = ? AND topic = ? AND kind = 'live';
-- name: subscription_add
-- Begin a live subscription.
INSERT INTO subscription (handler, topic, kind, created_us) VALUES (?, ?, 'live', ?) RETURNING id;
-- name: position_add
-- Begin at an offset of one partition.
INSERT INTO position (sub, tp, start, high, claimed_after) VALUES (?1, ?2, ?3, ?3, ?3) ON CONFLICT DO NOTHING;

-- name: worker_add
-- Make a process known as a worker.
INSERT INTO worker (pid, boot, lease_until_ns, lease_ms, started_us) VALUES (?, ?, ?, ?, ?) RETURNING id;
-- name: worker_renew
-- Renew a lease, also one that ran out and was forgotten: what was lost meanwhile is told by the epochs.
INSERT INTO worker (id, pid, boot, lease_until_ns, lease_ms, started_us) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT DO UPDATE SET lease_until_ns = excluded.lease_until_ns WHERE left_us IS NULL RETURNING id;
-- name: worker_leave
-- Note that a worker has stopped.
UPDATE worker SET left_us = ?, lease_until_ns = 0 WHERE id = ?;
-- name: worker_forget
-- Delete workers that left or died a while ago and own nothing.
DELETE FROM worker WHERE (left_us IS NOT NULL OR boot <> ?1 OR lease_until_ns < ?2)
AND NOT EXISTS (SELECT 1 FROM position WHERE owner = worker.id);
-- name: member_forget
-- Delete what such workers served.
DELETE FROM member WHERE worker NOT IN (SELECT id FROM worker);
-- name: member_add
-- Note that a worker serves a subscription.
INSERT INTO member (sub, worker) VALUES (?, ?) ON CONFLICT DO NOTHING;
-- name: member_remove
-- Note that a worker no longer serves a subscription.
DELETE FROM member WHERE sub = ? AND worker = ?;
-- name: member_known
-- Whether a worker still counts as serving a subscription.
SELECT 1 FROM member WHERE sub = ? AND worker = ?;
-- name: members_alive
-- How many live workers serve a subscription.
SELECT count(*) FROM member JOIN worker ON worker.id = member.worker
WHERE member.sub = ? AND worker.boot = ? AND worker.lease_until_ns > ?;
-- name: positions_mine
-- The partitions that a worker owns, with their fencing epochs.
SELECT tp, epoch FROM position WHERE sub = ? AND owner = ?;
-- name: positions_free
-- Partitions without a live owner.
SELECT tp FROM position LEFT JOIN worker ON worker.id = position.owner
WHERE sub = ?1 AND (owner IS NULL OR worker.id IS NULL OR worker.boot <> ?2 OR worker.lease_until_ns <= ?3)
ORDER BY tp LIMIT ?4;
-- name: position_take
-- Become the owner of a partition and fence the previous one, unless somebody alive has it by now.
UPDATE position SET owner = ?1, epoch = epoch + 1
WHERE sub = ?2 AND tp = ?3 AND (owner IS NULL OR owner = ?1 OR owner NOT IN (
    SELECT id FROM worker WHERE boot = ?4 AND lease_until_ns > ?5))
RETURNING epoch, high, claimed_after, version;
-- name: position_recover
-- The range that a dead owner had in hand is no longer running.
UPDATE position SET claimed_after = high, running = 0 WHERE sub = ? AND tp = ?;
-- name: open_recover_range
-- Its events become suspects, to be run one by one; of a replay those that it was allotted.
INSERT INTO open (sub, tp, seq, state, attempts, crashes, generation, due_us, noted_us, errors)
SELECT ?1, ?2, seq, 'retry', 1, 1, 0, 0, 0, '[]' FROM event WHERE tp = ?2 AND seq > ?3 AND seq <= ?4
AND (NOT EXISTS (SELECT 1 FROM replay WHERE sub = ?1)
    OR seq <= (SELECT upto FROM allotted WHERE sub = ?1 AND tp = ?2 AND after < event.seq ORDER BY after DESC LIMIT 1))
ON CONFLICT DO NOTHING;
-- name: open_recover_running
-- So do the single events that it had in hand.
UPDATE open SET state = 'retry', crashes = crashes + 1, due_us = 0 WHERE sub = ? AND tp = ? AND state = 'running';
-- name: open_load
-- The open offsets of a partition with their envelopes (which hold the key).
SELECT open.seq, state, attempts, crashes, generation, due_us, noted_us, errors, event.head
FROM open JOIN event ON event.seq = open.seq WHERE sub = ? AND open.tp = ? ORDER BY open.seq;
-- name: open_redriven
-- Offsets that another process has made waiting again.
SELECT tp, seq FROM open WHERE sub = ? AND state = 'redriven';
-- name: position_release
-- Hand a partition back; only when nothing of it runs.
UPDATE position SET owner = NULL WHERE sub = ? AND tp = ? AND owner = ? AND epoch = ? AND claimed_after = high
RETURNING tp;

-- name: claim_rows
-- The next events of a topic, in commit order over its partitions.
SELECT seq, tp, eid, CASE cid WHEN 0 THEN seq ELSE cid END, depth, head, body FROM event
WHERE tp >> 10 = ? AND seq > ? ORDER BY seq LIMIT ?;
-- name: claim_rows_behind
-- The next events of one partition between its position and the cursor of its worker.
SELECT seq, tp, eid, CASE cid WHEN 0 THEN seq ELSE cid END, depth, head, body FROM event
WHERE tp >> 10 = ? AND tp = ? AND seq > ? AND seq <= ? ORDER BY seq LIMIT ?;
-- name: claim_row
-- One open event by its offset.
SELECT seq, tp, eid, CASE cid WHEN 0 THEN seq ELSE cid END, depth, head, body FROM event WHERE seq = ?;
-- name: claim_range
-- Move a position over the events that are claimed; counts the attempt of each.
UPDATE position SET high = ?1, taken = taken + ?2, running = running + ?3, version = ?4
WHERE sub = ?5 AND tp = ?6 AND owner = ?7 AND epoch = ?8 AND claimed_after = high RETURNING tp;
-- name: position_skip
-- Move a position over offsets that belong to other partitions, so that a successor need not read them again.
UPDATE position SET high = ?1, claimed_after = ?1
WHERE sub = ?2 AND tp = ?3 AND owner = ?4 AND epoch = ?5 AND claimed_after = high AND high < ?1;
-- name: range_add
-- Begin a version range.
INSERT INTO range (sub, tp, after, version) VALUES (?, ?, ?, ?)
ON CONFLICT DO UPDATE SET version = excluded.version;
-- name: range_version
-- The version whose range an offset lies in.
SELECT version FROM range WHERE sub = ? AND tp = ? AND after < ? ORDER BY after DESC LIMIT 1;
-- name: claim_open
-- Take one open event for its next attempt.
UPDATE open SET state = 'running', attempts = attempts + 1 WHERE sub = ? AND tp = ? AND seq = ? AND state <> 'running'
RETURNING attempts, crashes, generation, errors;
-- name: position_running
-- Count open events that began to run.
UPDATE position SET running = running + ? WHERE sub = ? AND tp = ? AND owner = ? AND epoch = ? RETURNING tp;

-- name: settle_range
-- Close (a part of) the claimed range of a partition; refused when the epoch is stale.
UPDATE position SET claimed_after = high, running = running - ?1, done = done + ?2, dead = dead + ?3
WHERE sub = ?4 AND tp = ?5 AND owner = ?6 AND epoch = ?7 RETURNING tp;
-- name: settle_open
-- Close single open events of a partition; refused when the epoch is stale.
UPDATE position SET running = running - ?1, done = done + ?2, dead = dead + ?3
WHERE sub = ?4 AND tp = ?5 AND owner = ?6 AND epoch = ?7 RETURNING tp;
-- name: open_put
-- Keep an offset open.
INSERT INTO open (sub, tp, seq, state, attempts, crashes, generation, due_us, noted_us, errors)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET state = excluded.state, attempts = excluded.attempts, crashes = excluded.crashes,
due_us = excluded.due_us,
noted_us = excluded.noted_us, errors = excluded.errors;
-- name: open_close
-- Close an open offset.
DELETE FROM open WHERE sub = ? AND tp = ? AND seq = ?;
-- name: exception_put
-- Note that another version than the range's has finished an offset.
INSERT INTO exception (sub, tp, seq, version) VALUES (?, ?, ?, ?)
ON CONFLICT DO UPDATE SET version = excluded.version;
-- name: exception_drop
-- The range's own version has finished an offset after all (a redrive).
DELETE FROM exception WHERE sub = ? AND tp = ? AND seq = ?;
-- name: dead_add
-- Put an event aside with everything that is known about why.
INSERT INTO dead (sub, tp, seq, generation, version, reason, code, error, traceback, attempts, crashes, errors, eid,
type, trace, head, body, died_us) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: redrive_letter
-- A dead letter, its offset, and what decides whether it may be made waiting again.
SELECT dead.sub, dead.tp, dead.seq, dead.generation, dead.fate, handler.name,
coalesce(replay.version, handler.active), replay.sub IS NOT NULL, replay.again,
EXISTS (SELECT 1 FROM event WHERE seq = dead.seq AND tp = dead.tp),
EXISTS (SELECT 1 FROM open WHERE open.sub = dead.sub AND open.tp = dead.tp AND open.seq = dead.seq),
(SELECT max(generation) FROM dead AS letter WHERE letter.sub = dead.sub AND letter.seq = dead.seq)
FROM dead JOIN subscription ON subscription.id = dead.sub JOIN handler ON handler.id = subscription.handler
LEFT JOIN replay ON replay.sub = dead.sub WHERE dead.id = ?;
-- name: replay_has
-- Replays that share a live subscription's ledger and have, or have finished, an offset under a version.
SELECT replay.sub FROM subscription JOIN subscription AS other
ON other.handler = subscription.handler AND other.topic = subscription.topic
JOIN replay ON replay.sub = other.id AND replay.again IS NULL AND replay.version = ?4
WHERE subscription.id = ?1 AND subscription.kind = 'live'
AND ?3 <= (SELECT upto FROM allotted WHERE sub = other.id AND tp = ?2 AND after < ?3 ORDER BY after DESC LIMIT 1)
AND NOT EXISTS (SELECT 1 FROM dead WHERE dead.sub = other.id AND dead.seq = ?3 AND (fate IS NULL OR fate <> 'redriven'));
-- name: live_has
-- Whether the live subscription beside a replay has an offset open, or has finished it under a version.
SELECT live.id FROM subscription JOIN subscription AS live
ON live.handler = subscription.handler AND live.topic = subscription.topic AND live.kind = 'live'
WHERE subscription.id = ?1
AND (EXISTS (SELECT 1 FROM open WHERE open.sub = live.id AND open.tp = ?2 AND open.seq = ?3)
    OR (?4 = coalesce((SELECT version FROM exception WHERE sub = live.id AND tp = ?2 AND seq = ?3),
        (SELECT version FROM range WHERE sub = live.id AND tp = ?2 AND after < ?3 ORDER BY after DESC LIMIT 1))
    AND NOT EXISTS (SELECT 1 FROM dead WHERE dead.sub = live.id AND dead.seq = ?3
        AND (fate IS NULL OR fate <> 'redriven'))));
-- name: redrive_open
-- Make a dead event waiting again: a new generation, its attempts counted anew.
INSERT INTO open (sub, tp, seq, state, attempts, crashes, generation, due_us, noted_us, errors)
VALUES (?, ?, ?, 'redriven', 0, 0, ?, 0, 0, '[]');
-- name: redrive_position
-- It no longer counts as dead.
UPDATE position SET dead = dead - 1 WHERE sub = ? AND tp = ?;
-- name: dead_fate
-- Say what was decided about a dead letter.
UPDATE dead SET fate = ? WHERE id = ?;
