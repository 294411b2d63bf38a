package cred

import (
	"os"
	"strconv"
	"strings"
)

// mostKept bounds the memory that WithGroups takes. Users have a few groups; one who
// may map group ids of its own into a user namespace can have 65,536.
const mostKept = 256

// WithGroups returns c with the supplementary groups that it has now. It is for a caller
// whose rights outlive the request, as those of an open file do: its thread may end, and
// its id may become another's. A caller with more than 256 groups is returned as it is.
func (c Caller) WithGroups() Caller {
	if groups := supplementary(c); len(groups) <= mostKept {
		c.groups = &groups
	}
	return c
}

// Groups returns the supplementary groups that WithGroups has found; known is false if it has not.
func (c Caller) Groups() (groups []int, known bool) {
	if c.groups == nil {
		return nil, false
	}
	return *c.groups, true
}

// WithTheseGroups returns c with supplementary groups that were found earlier.
func (c Caller) WithTheseGroups(groups []int) Caller {
	c.groups = &groups
	return c
}

// supplementary returns the groups of c, which it reads from /proc unless they are known.
// Process ids are reused, so the groups count only if the process has the uid of c.
func supplementary(c Caller) []int {
	if c.groups != nil {
		return *c.groups
	}
	if c.PID == 0 {
		return nil
	}
	status, err := os.ReadFile("/proc/" + strconv.FormatUint(uint64(c.PID), 10) + "/status")
	if err != nil {
		return nil
	}
	return parseGroups(string(status), c.UID)
}

// parseGroups returns the Groups line if the file-system uid (the fourth number of the
// Uid line) is uid.
func parseGroups(status string, uid uint32) []int {
	var groups []int
	same := false
	for line := range strings.Lines(status) {
		name, rest, _ := strings.Cut(line, ":")
		fields := strings.Fields(rest)
		switch name {
		case "Uid":
			same = len(fields) == 4 && fields[3] == strconv.FormatUint(uint64(uid), 10)
		case "Groups":
			for _, f := range fields {
				if g, err := strconv.ParseUint(f, 10, 32); err == nil {
					groups = append(groups, int(g))
				}
			}
		}
	}
	if !same {
		return nil
	}
	return groups
}
