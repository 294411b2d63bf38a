package cred

import (
	"os"
	"strconv"
	"strings"
)

// supplementary reads the groups of c from /proc. Process ids are reused, so the groups
// count only if the process has the uid of c.
func supplementary(c Caller) []int {
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
