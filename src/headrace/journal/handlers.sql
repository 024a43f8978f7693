-- Queries on handlers that are renamed or retired, each with a name and a sentence on what it is for.

-- name: named
-- A handler by the name that it has now.
SELECT id FROM handler WHERE name = ?;
-- name: rename
-- Give a handler another name.
UPDATE handler SET name = ? WHERE id = ?;
-- name: was_add
-- Note that it had this name before.
INSERT INTO was (name, handler, renamed_us) VALUES (?, ?, ?) ON CONFLICT DO NOTHING;
-- name: former
-- The handler that had a name before, or has it again.
SELECT handler FROM was WHERE name = ?;
-- name: born_as
-- The first name of a handler that was renamed.
SELECT was.name FROM was JOIN handler ON handler.id = was.handler WHERE handler.name = ? ORDER BY renamed_us LIMIT 1;
-- name: live
-- The live subscriptions of a handler.
SELECT subscription.id, subscription.topic, handler.active FROM subscription
JOIN handler ON handler.id = subscription.handler WHERE handler.name = ? AND kind = 'live';
-- name: retired
-- Retired subscriptions: handler, topic, what they have taken and what of it has expired.
SELECT handler.name, topic.name, sum(taken), sum(done), sum(dead), sum(expired) FROM subscription
JOIN handler ON handler.id = subscription.handler JOIN topic ON topic.id = subscription.topic
JOIN position ON position.sub = subscription.id WHERE kind = 'retired' GROUP BY subscription.id ORDER BY 1, 2;
-- name: serving
-- Live workers that serve a subscription.
SELECT worker.pid FROM worker WHERE boot = ?2 AND lease_until_ns > ?3 AND left_us IS NULL AND (
    EXISTS (SELECT 1 FROM member WHERE member.sub = ?1 AND member.worker = worker.id)
    OR EXISTS (SELECT 1 FROM position WHERE position.sub = ?1 AND position.owner = worker.id));
-- name: retire
-- Retire a subscription: retention no longer waits for it.
UPDATE subscription SET kind = 'retired' WHERE id = ?;
-- name: replays_of
-- The replays of a handler that have not come to their end.
SELECT replay.sub FROM replay JOIN subscription ON subscription.id = replay.sub
JOIN handler ON handler.id = subscription.handler WHERE handler.name = ? AND (
EXISTS (SELECT 1 FROM open WHERE open.sub = replay.sub)
OR EXISTS (SELECT 1 FROM position AS at WHERE at.sub = replay.sub AND (at.running > 0
    OR at.high < (SELECT max(upto) FROM allotted WHERE allotted.sub = at.sub AND allotted.tp = at.tp))));
-- name: allotted_left
-- How many events of a partition that a replay was allotted it has not taken.
SELECT count(*) FROM position CROSS JOIN allotted ON allotted.sub = position.sub AND allotted.tp = position.tp
CROSS JOIN event ON event.tp >> 10 = allotted.tp >> 10 AND event.tp = allotted.tp AND event.seq > max(allotted.after, position.high)
AND event.seq <= allotted.upto WHERE position.sub = ? AND position.tp = ?;
-- name: allotted_of
-- What a replay was allotted of a partition.
SELECT after, upto FROM allotted WHERE sub = ? AND tp = ? ORDER BY after;
-- name: allotted_drop
-- Take it back.
DELETE FROM allotted WHERE sub = ? AND tp = ?;
-- name: replay_end
-- Move a replay to the end of what it was allotted of a partition; what it had not taken is expired.
UPDATE position SET taken = taken + ?1, expired = expired + ?1, high = ?2, claimed_after = ?2
WHERE sub = ?3 AND tp = ?4;
-- name: retired_sub
-- The retired subscription of a handler to a topic.
SELECT id FROM subscription WHERE handler = ? AND topic = ? AND kind = 'retired';
-- name: revive
-- A retired handler has come back.
UPDATE subscription SET kind = 'live' WHERE id = ?;

-- name: positions
-- The positions of a subscription.
SELECT tp, high, claimed_after FROM position WHERE sub = ? ORDER BY tp;
-- name: position
-- One of them.
SELECT start, high, claimed_after FROM position WHERE sub = ? AND tp = ?;
-- name: fence
-- Take a partition from whoever has it: outcomes of what is in hand are refused from now on.
UPDATE position SET owner = NULL, epoch = epoch + 1, claimed_after = high, running = 0 WHERE sub = ? AND tp = ?;
-- name: return_range
-- What was claimed and has no outcome waits for its turn again; the attempt does not count.
INSERT INTO open (sub, tp, seq, state, attempts, crashes, generation, due_us, noted_us, errors)
SELECT ?1, ?2, seq, 'returned', 0, 0, 0, 0, 0, '[]' FROM event WHERE tp = ?2 AND seq > ?3 AND seq <= ?4
AND (NOT EXISTS (SELECT 1 FROM replay WHERE sub = ?1)
    OR seq <= (SELECT upto FROM allotted WHERE sub = ?1 AND tp = ?2 AND after < event.seq ORDER BY after DESC LIMIT 1))
ON CONFLICT DO NOTHING;
-- name: return_running
-- So does what runs singly.
UPDATE open SET state = 'returned', attempts = max(attempts - 1, 0), due_us = 0
WHERE sub = ? AND tp = ? AND state = 'running';
-- name: open_events
-- The open offsets of a partition (or some of them) with their events, and the version that had them last.
SELECT open.seq, generation, attempts, crashes, event.eid, event.head, (
    SELECT version FROM range WHERE range.sub = open.sub AND range.tp = open.tp AND after < open.seq
    ORDER BY after DESC LIMIT 1)
FROM open JOIN event ON event.seq = open.seq
WHERE open.sub = ?1 AND open.tp = ?2 AND (?3 IS NULL OR open.seq IN (SELECT value FROM json_each(?3)));
-- name: open_count
-- How many offsets of a subscription stand open, or were claimed by a worker that is gone.
SELECT (SELECT count(*) FROM open WHERE sub = ?1) + (SELECT count(*) FROM position CROSS JOIN event
    ON event.tp = position.tp AND event.seq > claimed_after AND event.seq <= high
    WHERE position.sub = ?1 AND claimed_after < high AND NOT EXISTS (
        SELECT 1 FROM open WHERE open.sub = ?1 AND open.tp = event.tp AND open.seq = event.seq)
    AND (NOT EXISTS (SELECT 1 FROM replay WHERE sub = ?1) OR event.seq <= (SELECT upto FROM allotted
        WHERE sub = ?1 AND tp = event.tp AND after < event.seq ORDER BY after DESC LIMIT 1)));
-- name: untaken
-- How many events a subscription has not taken yet.
SELECT count(*) FROM event CROSS JOIN position ON position.sub = ?1 AND position.tp = event.tp
WHERE event.tp >> 10 = ?2 AND event.seq > position.high;
-- name: open_drop
-- Close open offsets.
DELETE FROM open WHERE sub = ? AND tp = ? AND seq IN (SELECT value FROM json_each(?));
-- name: expired
-- Count open events that were closed unhandled.
UPDATE position SET expired = expired + ? WHERE sub = ? AND tp = ?;
-- name: letter_add
-- Say why an event was closed unhandled: a dead letter that nobody has to decide on.
INSERT INTO dead (sub, tp, seq, generation, version, reason, code, error, traceback, attempts, crashes, errors, eid,
type, trace, head, body, died_us, fate)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, '', ?, ?, '[]', ?, ?, ?, ?, x'', ?, 'expired');
