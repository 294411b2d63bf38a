package conformance

import (
	"maps"
	"slices"
	"strconv"
	"syscall"
	"testing"
)

// check is one number of the specification and the tests for it.
type check struct {
	what  string
	ways  ways
	alone bool // measures time, or needs much memory: runs alone
}

func signal(sig syscall.Signal) func(*testing.T) {
	return func(t *testing.T) { restarted(t, sig) }
}

// cases are those of the protocol specification, chapter 11.
var cases = map[int]check{
	1:  {what: "mountinfo names type and source", ways: sys(mountinfoLine)},
	2:  {what: "the mount point is found from a path", ways: c(findsMountC).and(goWay(findsMountGo))},
	3:  {what: "a buffer that is too short is left alone", ways: c(shortBuffer)},
	4:  {what: "a path elsewhere is not on a 3FS", ways: c(offMountC).and(goWay(offMountGo))},
	5:  {what: "bind mounts of a part and of 3fs-virt", ways: way("c", bindMountC).and(way("go", bindMountGo))},
	6:  {what: "another file system type, if asked for", ways: way("c", anyTypeC).and(way("go", anyTypeGo))},
	7:  {what: "magic, version, mount name and path offset on every descriptor", ways: c(magicC).and(goWay(magicGo))},
	8:  {what: "O_PATH and foreign descriptors are not on a 3FS", ways: c(notMagicC).and(goWay(notMagicGo))},
	9:  {what: "an unknown ioctl", ways: c(unknownIoctl)},
	10: {what: "forced sync with a wild pointer", ways: c(forceFsync)},
	11: {what: "3fs-virt: names, modes, inode numbers", ways: sys(virtualTree)},
	12: {what: "each uid lists its own registrations", ways: way("c", eachSeesOwn)},
	13: {what: "another uid's key", ways: way("c", othersKey)},
	14: {what: "submit links stay", ways: sys(submitLinkStays)},
	15: {what: "iovs holds registrations only", ways: sys(nothingElseInIovs)},
	16: {what: "a name without a uuid", ways: sys(badUUID)},
	17: {what: "contradictions in the name", ways: sys(badItems)},
	18: {what: "depth beyond the ring", ways: sys(depthBeyondRing)},
	19: {what: "target missing or not a file", ways: sys(badTarget)},
	20: {what: "target elsewhere", ways: sys(targetElsewhere)},
	21: {what: "objects too small", ways: sys(tinyObjects)},
	22: {what: "items in any order", ways: way("raw", func(t *testing.T) { itemsInAnyOrder(t, shared(t)) })},
	23: {what: "a ring's object loses its name at once", ways: both(ringNameGone)},
	24: {what: "an iov's object may lose its name", ways: c(unlinkedObjectC).and(goWay(unlinkedObjectGo))},
	25: {what: "ring layout", ways: c(layoutC).and(way("go", layoutGo))},
	26: {what: "the daemon initialises the semaphore", ways: c(semInitialisedC).and(way("raw", semInitialisedRaw))},
	27: {what: "a read of 1 MiB", ways: both(readsOneMiB)},
	28: {what: "a full ring", ways: both(ringFull)},
	29: {what: "the lowest free index", ways: both(lowestIndexFirst)},
	30: {what: "end of file", ways: both(endOfFile)},
	31: {what: "a hole before data", ways: both(holeReadsAsZeros)},
	32: {what: "a forbidden hole", ways: both(holeForbidden)},
	33: {what: "a request inside a hole (changed)", ways: both(insideHole)},
	34: {what: "a sparse file (changed)", ways: both(sparseGiB)},
	35: {what: "writes extend", ways: both(writesExtend)},
	36: {what: "size after forced sync", ways: both(sizeAfterForceFsync)},
	37: {what: "size after fsync", ways: both(sizeAfterFsync)},
	38: {what: "size after close", ways: both(sizeAfterClose)},
	39: {what: "the mode a file was opened in", ways: both(wrongOpenMode)},
	40: {what: "the ring's direction", ways: c(wrongDirection)},
	41: {what: "ranges outside the buffer", ways: both(wrongRange)},
	42: {what: "a file that is not registered", ways: c(unregisteredC).and(goWay(unregisteredGo))},
	43: {what: "an unknown buffer", ways: c(unknownBuffer)},
	44: {what: "an unknown inode", ways: c(unknownFile)},
	45: {what: "beyond the buffer, twice", ways: c(beyondBuffer)},
	46: {what: "across a block", ways: c(crossesBlockRaw).and(goWay(crossesBlockGo))},
	47: {what: "overlapping reads (changed)", ways: both(overlappingReads)},
	48: {what: "a read-only user (changed: may unregister)", ways: way("c", readonlyUser)},
	49: {what: "depth 4", ways: both(fixedDepth)},
	50: {what: "depth -4, no timeout", ways: both(negativeDepth)},
	51: {what: "depth -4, 20 ms (changed)", ways: both(negativeDepthTimer), alone: true},
	52: {what: "a later job first", ways: way("disk", slowFirst)},
	53: {what: "a poll returns at once", ways: both(pollReturnsAtOnce)},
	54: {what: "a deadline in the past", ways: both(pastDeadline)},
	55: {what: "a lost post", ways: c(lostPost)},
	56: {what: "three priorities", ways: both(priorities)},
	57: {what: "another process submits", ways: both(othersSubmit)},
	58: {what: "what registering returns", ways: c(registersOnce).and(goWay(registersAgainGo))},
	59: {what: "a number used again", ways: c(staleNumber)},
	60: {what: "the original closed", ways: both(originalClosed)},
	61: {what: "a killed process", ways: way("c", killedC).and(way("go", killedGo))},
	62: {what: "what a second thread registered (changed)", ways: way("c", killedSecondThread)},
	63: {what: "listing iovs (changed)", ways: both(listingIsHarmless)},
	64: {what: "a forked child", ways: way("c", forkedChildKeepsRing)},
	65: {what: "unlinked under load", ways: both(unlinkedUnderLoad)},
	66: {what: "a ring with flags (changed)", ways: way("c", flagsTwoC).and(sys(flagsAlias))},
	67: {what: "rm-rf", ways: sys(rmRf).and(way("rights", rmRfRights))},
	68: {what: "ln inside rm-rf", ways: sys(lnInsideRmRf)},
	69: {what: "mv into rm-rf", ways: sys(mvIntoRmRf)},
	70: {what: "mv: links", ways: sys(mvLink)},
	71: {what: "get-conf", ways: sys(getConf)},
	72: {what: "set-conf", ways: way("c", setConf)},
	73: {what: "MOVE", ways: c(moveIoctl)},
	74: {what: "REMOVE and RECURSIVE_RM", ways: c(removeIoctl)},
	75: {what: "PUNCH_HOLE (changed: requires the right to write)", ways: c(punchHole).and(way("hardlink", func(t *testing.T) { w := shared(t); hardlink(t, w, w.tool(t)) }))},
	76: {what: "operations beyond 3FS", ways: sys(beyond3FS)},
	77: {what: "unflushed writes (changed)", ways: both(unflushedWrite)},
	78: {what: "a restarted daemon", ways: way("killed", signal(syscall.SIGKILL)).and(way("stopped", signal(syscall.SIGTERM)))},
	79: {what: "an empty slice; an idle wait (changed)", ways: both(emptySliceAndIdleWait).and(throughPython(pythonEmptySliceAndIdleWait))},
	80: {what: "the priority in the name", ways: way("c", priorityInName).and(throughPython(pythonPriorityInName))},
	81: {what: "a slice of a slice", ways: both(sliceOffsets).and(throughPython(pythonSliceOfSlice))},
	82: {what: "opened by id", ways: way("c", openedByID).and(goWay(openedByIDGo))},
	83: {what: "16 MiB at odd places", ways: both(oneBigRead)},
	84: {what: "offset 2^63", ways: c(hugeOffset).and(goWay(hugeOffsetGo))},
}

// TestCase runs chapter 11.
func TestCase(t *testing.T) { runAll(t, cases, "", slices.Sorted(maps.Keys(cases))) }

// TestR runs the requirements of the known clients.
func TestR(t *testing.T) { runAll(t, requirements, "R", slices.Sorted(maps.Keys(requirements))) }

func runAll(t *testing.T, checks map[int]check, prefix string, numbers []int) {
	for _, n := range numbers {
		check := checks[n]
		t.Run(prefix+strconv.Itoa(n), func(t *testing.T) {
			if !check.alone {
				t.Parallel()
			}
			for _, name := range slices.Sorted(maps.Keys(check.ways)) {
				t.Run(name, check.ways[name])
			}
		})
	}
}

func TestEveryNumberHasATest(t *testing.T) {
	want := func(what string, checks map[int]check, numbers []int) {
		for _, n := range numbers {
			if c := checks[n]; c.what == "" || len(c.ways) == 0 {
				t.Errorf("%s %d has no test", what, n)
			}
		}
		for n, c := range checks {
			if !slices.Contains(numbers, n) {
				t.Errorf("%s %d is not in the specification", what, n)
			}
			for name, fn := range c.ways {
				if fn == nil {
					t.Errorf("%s %d/%s has no function", what, n, name)
				}
			}
		}
	}
	want("case", cases, series(1, 84))
	want("requirement", requirements, append(series(1, 16), series(20, 35)...))
}

func series(first, last int) (s []int) {
	for n := first; n <= last; n++ {
		s = append(s, n)
	}
	return s
}
