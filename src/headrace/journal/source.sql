-- Queries on a journal that is copied into another, each with a name and a sentence on what it is for.

-- name: made
-- When the journal was made: what tells it from others.
SELECT value FROM meta WHERE name = 'created_us';
-- name: alive
-- Workers whose lease runs.
SELECT pid, lease_until_ns FROM worker WHERE boot = ? AND lease_until_ns > ? AND left_us IS NULL;
-- name: marks
-- What everything has come to: it is another one as soon as anybody has worked.
SELECT (SELECT coalesce(max(seq), 0) FROM event), (SELECT coalesce(sum(taken), 0) FROM position),
(SELECT coalesce(sum(done), 0) FROM position), (SELECT coalesce(sum(dead), 0) FROM position),
(SELECT coalesce(sum(attempts), 0) FROM open), (SELECT count(*) FROM open), (SELECT coalesce(max(id), 0) FROM dead);

-- name: topics
-- Topics with partitions, events, bytes, size of the largest event.
SELECT topic.id, topic.name, topic.partitions, count(event.seq), coalesce(sum(length(head) + length(body)), 0),
coalesce(max(length(head) + length(body)), 0)
FROM topic LEFT JOIN event ON event.tp >> 10 = topic.id GROUP BY topic.id ORDER BY topic.id;
-- name: first_of_topic
-- The envelope of the oldest event of a topic.
SELECT head FROM event WHERE tp >> 10 = ? ORDER BY seq LIMIT 1;
-- name: events
-- Events of all topics above an offset.
SELECT seq, tp, eid, depth, head, body FROM event WHERE seq > ? ORDER BY seq LIMIT ?;
-- name: events_of_topic
-- Events of one topic above an offset.
SELECT seq, tp, eid, depth, head, body FROM event WHERE tp >> 10 = ? AND seq > ? ORDER BY seq LIMIT ?;
-- name: count_to
-- How many events there are up to an offset.
SELECT count(*) FROM event WHERE seq <= ?;

-- name: versions
-- All versions with their models, in the order in which they became known.
SELECT version.id, handler.name, version.declared, model.name, model.digest, model.epoch, model.declared
FROM version JOIN handler ON handler.id = version.handler LEFT JOIN model ON model.id = version.model
ORDER BY version.id;
-- name: trials
-- Versions that replays alone know.
SELECT id FROM version WHERE trial = 1;
-- name: active
-- The active version of each handler.
SELECT name, active FROM handler WHERE active IS NOT NULL ORDER BY id;
-- name: subscriptions
-- Live subscriptions, newest first.
SELECT subscription.id, handler.name, subscription.topic FROM subscription
JOIN handler ON handler.id = subscription.handler WHERE kind = 'live' ORDER BY subscription.id DESC;
-- name: replays
-- Replays of handlers that are live, oldest first.
SELECT replay.sub, handler.name, subscription.topic, replay.version, side, again, wanted, follow, skipped, emitted,
replay.created_us FROM replay JOIN subscription ON subscription.id = replay.sub
JOIN handler ON handler.id = subscription.handler
WHERE EXISTS (SELECT 1 FROM subscription AS live WHERE live.handler = handler.id AND live.kind = 'live')
ORDER BY replay.sub;
-- name: allotted
-- What a replay was allotted, (after, upto] of each partition, and how far was looked.
SELECT tp, after, upto FROM allotted WHERE sub = ? ORDER BY tp, after;
-- name: positions
-- The positions of a subscription, counted as if there had never been more than what there is: events whose payload
-- is gone stay behind, and what was closed unhandled counts as done.
SELECT tp, start, high, claimed_after, taken - gone, done + expired - gone + lost, dead - lost FROM (
    SELECT *, (SELECT count(*) FROM dead AS letter WHERE letter.sub = position.sub AND letter.tp = position.tp
        AND (fate IS NULL OR fate = 'dropped')
        AND NOT EXISTS (SELECT 1 FROM event WHERE event.seq = letter.seq)) AS lost
    FROM position WHERE sub = ?) ORDER BY tp;
-- name: ranges
-- Its version ranges.
SELECT tp, after, version FROM range WHERE sub = ? ORDER BY tp, after;
-- name: open
-- Its open offsets.
SELECT tp, seq, state, attempts, crashes, generation, due_us, errors FROM open WHERE sub = ? ORDER BY tp, seq;
-- name: claimed
-- Events that were in the hand of a worker that died and have no outcome.
SELECT event.tp, event.seq FROM position CROSS JOIN event ON event.tp >> 10 = position.tp >> 10
AND event.tp = position.tp AND event.seq > claimed_after AND event.seq <= high
WHERE position.sub = ?1 AND claimed_after < high
AND NOT EXISTS (SELECT 1 FROM open WHERE open.sub = ?1 AND open.tp = event.tp AND open.seq = event.seq)
ORDER BY event.seq;
-- name: exceptions
-- Its offsets that another version than their range's has finished.
SELECT tp, seq, version FROM exception WHERE sub = ?
AND EXISTS (SELECT 1 FROM event WHERE event.seq = exception.seq) ORDER BY tp, seq;
-- name: letters
-- Dead letters above a number that nobody has decided on, of what is copied; the last number is that of a replay, or 0.
SELECT dead.id, handler.name, dead.tp, dead.seq, dead.generation, dead.version, dead.reason, dead.code, dead.error,
dead.traceback, dead.attempts, dead.crashes, dead.errors, dead.eid, dead.type, dead.trace, dead.head, dead.body,
dead.died_us, coalesce(event.depth, 0), CASE kind WHEN 'live' THEN 0 ELSE dead.sub END
FROM dead JOIN subscription ON subscription.id = dead.sub JOIN handler ON handler.id = subscription.handler
LEFT JOIN event ON event.seq = dead.seq
WHERE dead.id > ? AND dead.fate IS NULL AND EXISTS (
    SELECT 1 FROM subscription AS live WHERE live.handler = handler.id AND live.kind = 'live')
AND kind <> 'retired' ORDER BY dead.id LIMIT ?;
-- name: letter_topics
-- By topic: bytes of the undecided dead letters, of the largest one, and when the oldest died.
SELECT tp >> 10, sum(length(head) + length(body) + length(error) + length(traceback)),
max(length(head) + length(body) + length(error) + length(traceback)), min(died_us)
FROM dead WHERE fate IS NULL GROUP BY tp >> 10;
-- name: letter_counts
-- Dead letters that nobody has decided on, and the others.
SELECT count(*) FILTER (WHERE fate IS NULL), count(*) FILTER (WHERE fate IS NOT NULL) FROM dead;
