// Package keeper keeps a data directory below its capacity, and directories in it below
// their quotas: it gives writers room, and removes what is least worth keeping before
// there is none.
//
// Strict: what files take and what is set aside for writes never exceeds a limit by what
// the keeper has admitted. A writer that finds no room waits, in the order of arrival at
// that limit, for as long as something may still go, and no longer than its deadline.
//
// It runs ahead: once more than the high watermark of a limit is used, files go until the
// low one is reached. First those that unfinished writes have left behind, then those whose
// last use, put later by a bonus for each further use, is longest ago. A file that is in
// use, pinned, younger than its grace period, of a kind that only its owner may remove, or
// that has several names never goes.
//
// A limit below what is used at the time is kept to as well: everything that may go goes
// until the limit is kept to, and until then writers that need room get ENOSPC or EDQUOT.
//
// Times are the monotonic clock's. The wall clock counts in two places: the age of a
// file's bytes is from its mtime, and how long a daemon was down is from what it saved. A
// step of the wall clock is noticed, and for a grace period mtimes count by the clock from
// before and from after it. Downtime counts at most mostDowntime.
package keeper
