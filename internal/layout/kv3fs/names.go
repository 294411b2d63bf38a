// Package kv3fs has the names of the files that kv3fs itself makes in directories of engines and
// in its own: what its block stores keep beside blocks, segments, and what replays and
// benchmarks write. It is pure.
//
//	<root>/.kv3fs-temp/<32 digits>.<writer>-<number>   a block that is being written
//	<root>/.kv3fs-sums[-…]/, <root>/.kv3fs-items/      logs of checksums, and of what is in which file
//	<root>/.kv3fs-quarantine/<32 digits>.<time>        a block that was found damaged
//	<name>.kv3fs-damaged-<time>                        a file that was, by the daemon's checksums
//	<root>/.kv3fs-spare/<name of the block's file>     a block whose own place cannot be read
//	<directory>/segment-000000, segments.super, …      the segment store's
//	<directory>/1f/000000000000031f-r0-65536           a block of a replay: rank 0, 64 KiB
//	<directory>/tmp/<process>/                         what a replay is writing
//	.kv3fs/, .kv3fs-keep/                              state of kv3fs serve and kv3fs keep
//	kv3fs-bench-<number>/                              of a benchmark that runs, or was killed
package kv3fs

import (
	"strconv"
	"strings"
)

// Directories beside blocks. A block store may have several that begin with SumsDir, one for
// each deployment.
const (
	TempDir       = ".kv3fs-temp"
	SumsDir       = ".kv3fs-sums"
	ItemsDir      = ".kv3fs-items"
	QuarantineDir = ".kv3fs-quarantine"
	SpareDir      = ".kv3fs-spare"
)

// StateDir is the daemon's own directory in its data directory.
const StateDir = ".kv3fs"

// KeepDir is where kv3fs keep has its state, in a directory that others serve: they may hide
// StateDir.
const KeepDir = ".kv3fs-keep"

// KeyDigits is how many hexadecimal digits a key has.
const KeyDigits = 32

const (
	writerDigits = 8 // of a writer in the name of a temporary file
	idDigits     = 16
)

// IsKey reports whether a name is a key.
func IsKey(name string) bool { return len(name) == KeyDigits && isHex(name) }

// IsTemporary reports whether a name is that of a block that a block store is writing.
func IsTemporary(name string) bool {
	const writerAt = KeyDigits + 1
	const numberAt = writerAt + writerDigits + 1
	return len(name) > numberAt && isHex(name[:KeyDigits]) && name[KeyDigits] == '.' &&
		isHex(name[writerAt:numberAt-1]) && name[numberAt-1] == '-' && isDecimal(name[numberAt:])
}

// IsQuarantined reports whether a name is that of a block in QuarantineDir.
func IsQuarantined(name string) bool {
	return len(name) > KeyDigits+1 && isHex(name[:KeyDigits]) && name[KeyDigits] == '.' && isDecimal(name[KeyDigits+1:])
}

// asidePart separates the name of a file in which the daemon has found damage from the time.
const asidePart = ".kv3fs-damaged-"

// mostNameBytes is what file systems allow.
const mostNameBytes = 255

// AsideName returns the name that a damaged file gets in its directory at a time, in seconds, where no engine looks
// for it. ok is false if that is too long.
func AsideName(name string, unixSeconds int64) (aside string, ok bool) {
	aside = name + asidePart + strconv.FormatInt(unixSeconds, 10)
	return aside, len(aside) <= mostNameBytes
}

// IsAside reports whether a name is one of those, and what it was.
func IsAside(name string) (was string, ok bool) {
	at := strings.LastIndex(name, asidePart)
	if at <= 0 || !isDecimal(name[at+len(asidePart):]) {
		return "", false
	}
	return name[:at], true
}

// IsLogDir reports whether a directory has logs of a block store.
func IsLogDir(name string) bool {
	return name == SumsDir || name == ItemsDir || strings.HasPrefix(name, SumsDir+"-")
}

// Names of the segment store.
const (
	SegmentsLock     = "segments.lock"
	SegmentsSuper    = "segments.super"
	SegmentsNewSuper = SegmentsSuper + ".new"
	SegmentPrefix    = "segment-"
	segmentDigits    = 6 // at least
)

// IsSegment reports whether a name is one of the segment store's files.
func IsSegment(name string) bool {
	if digits, ok := strings.CutPrefix(name, SegmentPrefix); ok {
		return len(digits) >= segmentDigits && len(digits) <= 10 && isDecimal(digits) && (len(digits) == segmentDigits || digits[0] != '0')
	}
	return name == SegmentsLock || name == SegmentsSuper || name == SegmentsNewSuper
}

// PageFileMagic begins the page file of the store Pages, whose users choose its name.
const PageFileMagic = "kv3fsPGF"

// Block is a block of a replay, or a rank's slice of it.
type Block struct {
	ID        uint64
	Rank      int
	SizeBytes int64
}

// ParseBlock reads the path of a block of a replay below its directory: two names.
func ParseBlock(dir, name string) (b Block, ok bool) {
	if len(name) < idDigits || len(dir) != 2 || dir != name[idDigits-2:idDigits] || !isHex(name[:idDigits]) {
		return b, false
	}
	rest, ok := strings.CutPrefix(name[idDigits:], "-r")
	if !ok {
		return b, false
	}
	rank, size, _ := strings.Cut(rest, "-")
	n, isRank := parseDecimal(rank, 31)
	b.SizeBytes, ok = parseDecimal(size, 63)
	if !isRank || !ok || b.SizeBytes == 0 {
		return Block{}, false
	}
	for i := range idDigits {
		b.ID = b.ID<<4 | uint64(digit(name[i]))
	}
	b.Rank = int(n)
	return b, true
}

// ReplayTempDir is where a replay writes, each process in a directory of its own.
const ReplayTempDir = "tmp"

// IsReplayProcess reports whether a name is one that a replay has for its process: boot, process
// id name space, process id and start time.
func IsReplayProcess(name string) bool {
	const bootDigits = 8
	if len(name) <= bootDigits || !isHex(name[:bootDigits]) {
		return false
	}
	rest := name[bootDigits:]
	for range 3 {
		if rest == "" || rest[0] != '-' {
			return false
		}
		end := strings.IndexByte(rest[1:], '-') + 1
		if end == 0 {
			end = len(rest)
		}
		if !isDecimal(rest[1:end]) {
			return false
		}
		rest = rest[end:]
	}
	return rest == ""
}

// IsScratchDir reports whether a directory is one that a benchmark, or a test of a store, makes
// for its own time and removes.
func IsScratchDir(name string) bool {
	for _, prefix := range [...]string{"kv3fs-bench-pages-", "kv3fs-bench-cold-", "kv3fs-bench-", "kv3fs-storetest-"} {
		if rest, ok := strings.CutPrefix(name, prefix); ok && isDecimal(rest) {
			return true
		}
	}
	return false
}

// IsProbe reports whether a file is one that the doctor, or a benchmark's report, makes for a
// moment.
func IsProbe(name string) bool {
	if rest, ok := strings.CutPrefix(name, ".kv3fs-doctor-"); ok {
		return isDecimal(rest)
	}
	rest, ok := strings.CutPrefix(name, ".kv3fs-bench-")
	if ok {
		rest, ok = strings.CutSuffix(rest, ".html")
	}
	return ok && isDecimal(rest)
}

func isHex(s string) bool {
	for i := range len(s) {
		if digit(s[i]) > 15 {
			return false
		}
	}
	return s != ""
}

// digit returns what a lower-case hexadecimal digit stands for, 255 for what is none.
func digit(c byte) byte {
	switch {
	case '0' <= c && c <= '9':
		return c - '0'
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10
	}
	return 255
}

func isDecimal(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}

// parseDecimal reads a number without leading zeros.
func parseDecimal(s string, bits int) (int64, bool) {
	if !isDecimal(s) || len(s) > 1 && s[0] == '0' {
		return 0, false
	}
	n, err := strconv.ParseUint(s, 10, bits)
	return int64(n), err == nil
}
