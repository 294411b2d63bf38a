// Package policy decides which entries of a full cache leave first. It is pure: it keeps
// no files and reads no clock.
//
// Each entry has a Heat: its last use and how often it was used. The entry with the lowest
// Score leaves first. The score is the last use plus a bonus for each use beyond the first,
// so with a bonus of zero the policy is LRU, and with a large one it protects what was
// used often, as LFU does, but for a bounded time.
//
// No fixed bonus is good for every load. On a chat service, 75 seconds a use double the
// hits of a small cache; where sessions take a few quick turns and never come back, the
// same bonus loses nearly all of them. A Tuner therefore runs small simulated caches with
// different bonuses beside the real one, on a sample of the same uses, and gives the bonus
// that has recently served more than LRU by a margin that chance does not explain. Until
// one does, the bonus is zero: the policy is then LRU.
//
// Ghosts remember the uses of entries that have left, which count again if they come back.
package policy
