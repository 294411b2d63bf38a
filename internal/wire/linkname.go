package wire

import (
	"math"
	"strconv"
	"strings"
	"syscall"
)

// Ring flags (appendix B).
const (
	AllowReadUncommitted = 1
	ForbidReadHoles      = 2
)

// Priority of a ring, as the client library numbers it.
type Priority int8

const (
	High   Priority = -1
	Normal Priority = 0
	Low    Priority = 1
)

// Link is the meaning of a name under 3fs-virt/iovs (3.3): an iov, or with Ring set an
// I/O ring.
type Link struct {
	ID         UUID
	BlockBytes int64 // size of an iov's sub-blocks; 0: the whole object is one

	Ring      bool
	Write     bool // direction of the ring
	IODepth   int32
	TimeoutMs int32
	Priority  Priority
	Flags     uint64
}

// ParseLink parses a registration name. Items may come in any order; a repeated item
// overrides the earlier one; empty and unknown items are ignored. Errors are EIO for a
// malformed uuid and EINVAL for everything else, as clients expect.
func ParseLink(name string) (Link, error) {
	id, items, _ := strings.Cut(name, ".")
	var l Link
	var ok bool
	if l.ID, ok = ParseUUID(id); !ok {
		return Link{}, syscall.EIO
	}
	ringOnly := false
	for item := range strings.SplitSeq(items, ".") {
		if item == "" {
			continue
		}
		value := item[1:]
		switch item[0] {
		case 'b':
			if l.BlockBytes = decimalPrefix(value); l.BlockBytes <= 0 {
				return Link{}, syscall.EINVAL
			}
		case 'r', 'w':
			depth := decimalPrefix(value)
			if depth < math.MinInt32 || depth > math.MaxInt32 {
				return Link{}, syscall.EINVAL
			}
			l.Ring, l.Write, l.IODepth = true, item[0] == 'w', int32(depth)
		case 't':
			ms := decimalPrefix(value)
			if ms < 0 || ms > math.MaxInt32 {
				return Link{}, syscall.EINVAL
			}
			l.TimeoutMs, ringOnly = int32(ms), true
		case 'f':
			if l.Flags, ok = parseFlags(value); !ok {
				return Link{}, syscall.EINVAL
			}
			ringOnly = true
		case 'p':
			switch {
			case value == "" || value[0] == 'n':
				l.Priority = Normal
			case value[0] == 'h':
				l.Priority = High
			case value[0] == 'l':
				l.Priority = Low
			default:
				return Link{}, syscall.EINVAL
			}
			ringOnly = true
		}
	}
	if ringOnly && !l.Ring {
		return Link{}, syscall.EINVAL
	}
	return l, nil
}

// Name returns the canonical spelling: b, r or w, p, t, f, with flags in binary. A ring
// always has a .t, because upstream's daemon requires it.
func (l Link) Name() string {
	var b strings.Builder
	b.WriteString(l.ID.String())
	if l.BlockBytes > 0 {
		b.WriteString(".b" + strconv.FormatInt(l.BlockBytes, 10))
	}
	if !l.Ring {
		return b.String()
	}
	b.WriteString(map[bool]string{false: ".r", true: ".w"}[l.Write])
	b.WriteString(strconv.FormatInt(int64(l.IODepth), 10))
	b.WriteString(map[Priority]string{High: ".ph", Low: ".pl"}[l.Priority])
	b.WriteString(".t" + strconv.FormatInt(int64(l.TimeoutMs), 10))
	if l.Flags != 0 {
		b.WriteString(".f" + strconv.FormatUint(l.Flags, 2))
	}
	return b.String()
}

// DecimalFlagsAlias converts a ring name with decimal flags into the name under which
// the ring was created. Upstream's library registers a ring with binary flags and
// unlinks it with decimal ones (3.4). ok is false where name is no such spelling.
func DecimalFlagsAlias(name string) (created string, ok bool) {
	i := strings.LastIndex(name, ".f")
	if i < 0 {
		return "", false
	}
	n, err := strconv.ParseUint(name[i+2:], 10, 64)
	if err != nil || n < 2 {
		return "", false
	}
	return name[:i+2] + strconv.FormatUint(n, 2), true
}

// decimalPrefix parses like C's atoll: leading blanks, a sign, and digits up to the
// first other byte. It saturates, and returns 0 where there are no digits.
func decimalPrefix(s string) int64 {
	s = strings.TrimLeft(s, " \t\n\v\f\r")
	end := 0
	if end < len(s) && (s[end] == '+' || s[end] == '-') {
		end++
	}
	for end < len(s) && s[end] >= '0' && s[end] <= '9' {
		end++
	}
	n, _ := strconv.ParseInt(s[:end], 10, 64) // saturates on overflow
	return n
}

// parseFlags parses the whole string in base 2, with the leading blanks and sign that
// strtoull accepts; an empty string is 0.
func parseFlags(s string) (uint64, bool) {
	if s == "" {
		return 0, true
	}
	s = strings.TrimLeft(s, " \t\n\v\f\r")
	neg := strings.HasPrefix(s, "-")
	if neg || strings.HasPrefix(s, "+") {
		s = s[1:]
	}
	if strings.ContainsFunc(s, func(r rune) bool { return r != '0' && r != '1' }) {
		return 0, false // ParseUint would also take underscores
	}
	n, err := strconv.ParseUint(s, 2, 64)
	if err != nil {
		return 0, false
	}
	if neg {
		n = -n
	}
	return n, true
}
