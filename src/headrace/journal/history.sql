-- Queries on which version has handled what, each with a name and a sentence on what it is for.

-- name: handlers
-- All handlers (or one) and their active versions.
SELECT name, active FROM handler WHERE ?1 IS NULL OR name = ?1 OR name GLOB '*.' || ?1 ORDER BY name;
-- name: versions
-- All versions of a handler, oldest first.
SELECT version.id, handler.name, version.declared, model.name, model.digest, model.epoch, model.declared
FROM version JOIN handler ON handler.id = version.handler LEFT JOIN model ON model.id = version.model
WHERE handler.name = ? ORDER BY version.id;
-- name: ranges
-- Version ranges of a handler's live subscription: what each begins after, what it ends with, its version.
SELECT range.sub, range.tp, range.after, coalesce(lead(range.after) OVER (
    PARTITION BY range.sub, range.tp ORDER BY range.after), position.high), range.version
FROM range JOIN position ON position.sub = range.sub AND position.tp = range.tp
JOIN subscription ON subscription.id = range.sub AND kind = 'live' JOIN handler ON handler.id = subscription.handler
WHERE handler.name = ? ORDER BY range.sub, range.tp, range.after;
-- name: range_counts
-- Events of a range that were taken, and how many of them are not finished: open, or in a claimed range.
SELECT (SELECT count(*) FROM event WHERE tp = ?2 AND seq > ?3 AND seq <= ?4),
(SELECT count(*) FROM open WHERE sub = ?1 AND tp = ?2 AND seq > ?3 AND seq <= ?4)
+ (SELECT count(*) FROM event WHERE tp = ?2 AND seq <= ?4
   AND seq > (SELECT max(claimed_after, ?3) FROM position WHERE sub = ?1 AND tp = ?2)
   AND NOT EXISTS (SELECT 1 FROM open WHERE open.sub = ?1 AND open.tp = ?2 AND open.seq = event.seq));
-- name: range_exceptions
-- Offsets of a range that another version has finished; one that is open again (redriven) is not finished.
SELECT seq, version FROM exception WHERE sub = ?1 AND tp = ?2 AND seq > ?3 AND seq <= ?4 AND NOT EXISTS (
    SELECT 1 FROM open WHERE open.sub = ?1 AND open.tp = ?2 AND open.seq = exception.seq) ORDER BY seq;
-- name: taken
-- Events that a handler has taken, and those among them that no version range covers.
SELECT coalesce(sum(taken), 0), coalesce(sum((SELECT count(*) FROM event WHERE event.tp = position.tp
    AND event.seq > position.start AND event.seq <= min(position.high, coalesce((SELECT min(after) FROM range
    WHERE range.sub = position.sub AND range.tp = position.tp), position.high)))), 0)
FROM position JOIN subscription ON subscription.id = position.sub AND kind = 'live'
JOIN handler ON handler.id = subscription.handler WHERE handler.name = ?;
