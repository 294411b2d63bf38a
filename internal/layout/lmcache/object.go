package lmcache

import (
	"fmt"
	"path"
	"strconv"
	"strings"
)

// ObjectName is what the name of an object's file says: LMCache's key of the object.
type ObjectName struct {
	Model string
	Rank  KVRank
	Group int    // of objects; NoGroup in older builds
	Hash  string // the digits of a digest
	Salt  string // of the tenant; often empty
}

// NoGroup is the Group of builds that have none.
const NoGroup = -1

// KVRank packs, from the top, the world size, the rank, the local world size and the local
// rank, a byte each.
type KVRank uint32

// Affixes returns what comes before and after the hash in the name of the file.
func (o ObjectName) Affixes() (prefix, suffix string) {
	prefix = fmt.Sprintf("%s@0x%08x@", strings.ReplaceAll(o.Model, "/", slash), uint32(o.Rank))
	if o.Group != NoGroup {
		prefix += strconv.FormatUint(uint64(o.Group), 16) + "@"
	}
	if o.Salt != "" {
		suffix = "@" + o.Salt
	}
	return prefix, suffix + Suffix
}

// String returns the name of the file.
func (o ObjectName) String() string {
	prefix, suffix := o.Affixes()
	return prefix + o.Hash + suffix
}

// Check returns an error if LMCache would not read the name as it was meant.
func (o ObjectName) Check() error {
	switch {
	case o.Model == "" || strings.ContainsAny(o.Model, "@\x00"):
		return fmt.Errorf("lmcache: the model %.60q has no name, or an @ in it, which separates the fields of LMCache's keys", o.Model)
	case o.Group < NoGroup:
		return fmt.Errorf("lmcache: object group %d: choose 0 or more", o.Group)
	case strings.ContainsAny(o.Salt, "@/\x00"):
		return fmt.Errorf("lmcache: the salt %.40q has an @ or a slash in it", o.Salt)
	}
	return checkSlashes(o.Model)
}

// MostSubdirs is how many levels of directories the adapter fs_native can have, by its setting
// hash_subdir_levels.
const MostSubdirs = 2

// Subdirs returns the directory of an object with a hash, below the base path, with so many
// levels: two digits of the hash for each.
func Subdirs(hash string, levels int) string {
	dir := "."
	for i := range levels {
		dir = path.Join(dir, hash[2*i:2*i+2])
	}
	return dir
}

// IsSubdir reports whether a path below the base path may be one of Subdirs.
func IsSubdir(dir string) bool {
	levels := strings.Split(dir, "/")
	for _, name := range levels {
		if len(name) != 2 || !isHex(name) {
			return false
		}
	}
	return len(levels) <= MostSubdirs
}

// leastObjectDigits tells a hash from an object group.
const leastObjectDigits = 8

// ParseObjectName reads the name of an object's file.
func ParseObjectName(file string) (ObjectName, bool) {
	stem, ok := strings.CutSuffix(file, Suffix)
	if !ok || strings.IndexByte(stem, '/') >= 0 {
		return ObjectName{}, false
	}
	fields := split(make([]string, 0, mostFields), stem)
	if len(fields) < 3 || !strings.HasPrefix(fields[1], "0x") || len(fields[1]) != len("0x")+rankDigits || !isHex(fields[1][2:]) {
		return ObjectName{}, false
	}
	rank, err := strconv.ParseUint(fields[1][2:], 16, 32)
	if err != nil {
		return ObjectName{}, false
	}
	o := ObjectName{Model: withSlashes(fields[0]), Rank: KVRank(rank), Group: NoGroup}
	fields = fields[2:]
	if len(fields) > 1 && isDigest(fields[1]) && len(fields[0]) < leastObjectDigits {
		group, err := strconv.ParseUint(fields[0], 16, 31)
		if err != nil || !isHex(fields[0]) || len(fields[0]) > 1 && fields[0][0] == '0' {
			return ObjectName{}, false
		}
		o.Group, fields = int(group), fields[1:]
	}
	o.Hash = fields[0]
	switch len(fields) {
	case 1:
	case 2:
		if o.Salt = fields[1]; o.Salt == "" {
			return ObjectName{}, false
		}
	default:
		return ObjectName{}, false
	}
	return o, isDigest(o.Hash) && o.Check() == nil
}

// rankDigits is how many digits a KVRank has in names.
const rankDigits = 8

func isHex(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return s != ""
}

func isDigest(s string) bool {
	return len(s) >= leastObjectDigits && len(s)%2 == 0 && len(s) <= DigestDigits && isHex(s)
}
