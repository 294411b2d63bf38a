package cluster

import (
	"fmt"
	"strconv"
	"strings"
)

// Recommended is what to use instead of a version with known faults.
const Recommended = "3.5.30, 3.6.11 or later"

// release is a version of etcd.
type release struct{ major, minor, patch int }

func parseRelease(s string) (r release, err error) {
	core, _, _ := strings.Cut(s, "-")
	core, _, _ = strings.Cut(core, "+")
	parts := strings.Split(core, ".")
	if len(parts) != 3 {
		return r, fmt.Errorf("%q is no version of etcd", s)
	}
	for i, into := range []*int{&r.major, &r.minor, &r.patch} {
		if *into, err = strconv.Atoi(parts[i]); err != nil || *into < 0 {
			return r, fmt.Errorf("%q is no version of etcd", s)
		}
	}
	return r, nil
}

// fault is a defect of etcd. By minor version: the first patch that has it no more; minor versions that are not listed never had it.
type fault struct {
	what  string
	since map[int]int // the first patch that has it; 0 where not listed
	fixed map[int]int
}

func faults() []fault {
	return []fault{
		{"stale reads after a member was paused", map[int]int{4: 20}, map[int]int{4: 42, 5: 28, 6: 9}},
		{"renewals succeed for leases that are gone", nil, map[int]int{4: 38, 5: 23, 6: 5}},
		{"a former leader among its members ends leases that are alive", nil, map[int]int{4: 31, 5: 13}},
		{"watches lose events after a compaction", nil, map[int]int{4: 31, 5: 13}},
		{"the revision goes back after a crash during a compaction", nil, map[int]int{4: 32, 5: 14}},
		{"a watch from the compacted revision lacks a deletion", nil, map[int]int{4: 36, 5: 18}},
		{"a watch from a future revision tells of older events", nil, map[int]int{4: 38}},
		{"users reach other users' keys by nested transactions", nil, map[int]int{4: 44, 5: 30, 6: 11}},
	}
}

// KnownFaults lists what is wrong with a version of etcd and right in later ones. kv3fs holds against all of it but the last; other users of
// that etcd may not.
func KnownFaults(version string) ([]string, error) {
	r, err := parseRelease(version)
	if err != nil {
		return nil, err
	}
	if r.major < 3 || r.major == 3 && r.minor < 4 {
		return []string{"it is not supported by its makers, and was never tried with kv3fs"}, nil
	}
	var found []string
	for _, f := range faults() {
		if fixed, had := f.fixed[r.minor]; r.major == 3 && had && r.patch < fixed && r.patch >= f.since[r.minor] {
			found = append(found, f.what)
		}
	}
	return found, nil
}
