package lmcache

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// Name is what the name of a chunk's file says: LMCache's key of the chunk.
type Name struct {
	Model     string
	WorldSize int
	WorkerID  int
	Hash      string // see Hash
	DType     string // a word of DTypes
	Layer     int    // in layerwise mode; NoLayer where a chunk has all layers
	Tags      []Tag

	// OldSlashes means that the file's name has a plain hyphen for each slash, as older
	// connectors write it. Then Model and Tags cannot be read back as they were.
	OldSlashes bool

	// OldFormat is the first field of the names of old builds, vllm for example. Those of the
	// oldest have no DType.
	OldFormat string
}

// NoLayer is the Layer of a chunk with all layers.
const NoLayer = -1

// Tag is a pair from the request: lmcache.tag.<Key>: Value.
type Tag struct{ Key, Value string }

// Affixes returns what comes before and after the hash in the name of the file.
func (n Name) Affixes() (prefix, suffix string) {
	prefix, suffix = n.KeyAffixes()
	instead := slash
	if n.OldSlashes {
		instead = "-"
	}
	return strings.ReplaceAll(prefix, "/", instead), strings.ReplaceAll(suffix, "/", instead) + Suffix
}

// KeyAffixes is Affixes for the key itself, which is in the names of other files.
func (n Name) KeyAffixes() (prefix, suffix string) {
	var before, after strings.Builder
	if n.OldFormat != "" {
		before.WriteString(n.OldFormat + "@")
	}
	fmt.Fprintf(&before, "%s@%d@%d@", n.Model, n.WorldSize, n.WorkerID)
	if n.OldFormat == "" || n.DType != "" {
		after.WriteString("@" + n.DType)
	}
	if n.Layer != NoLayer {
		fmt.Fprintf(&after, "@%d", n.Layer)
	}
	for _, tag := range n.Tags {
		after.WriteString("@" + tag.Key + "%" + tag.Value)
	}
	return before.String(), after.String()
}

// String returns the name of the file.
func (n Name) String() string {
	prefix, suffix := n.Affixes()
	return prefix + n.Hash + suffix
}

// Check returns an error if LMCache would not read the name as it was meant.
func (n Name) Check() error {
	switch {
	case n.Model == "":
		return fmt.Errorf("lmcache: the model has no name")
	case strings.ContainsAny(n.Model, "@\x00"):
		return fmt.Errorf("lmcache: the model %.60q has an @ in its name, which separates the fields of LMCache's keys", n.Model)
	case n.WorldSize < 1 || n.WorkerID < 0 || n.WorkerID >= n.WorldSize:
		return fmt.Errorf("lmcache: worker %d of %d: a worker's id is from 0 to the world size less 1", n.WorkerID, n.WorldSize)
	case n.Layer < NoLayer:
		return fmt.Errorf("lmcache: layer %d: choose 0 or more", n.Layer)
	}
	if strings.ContainsAny(n.OldFormat, "@/\x00") || isNumber(n.OldFormat) {
		return fmt.Errorf("lmcache: the format %.40q cannot be the first field of LMCache's keys; it is vllm, for example", n.OldFormat)
	}
	if !n.OldSlashes {
		if err := checkSlashes(n.Model); err != nil {
			return err
		}
		for _, tag := range n.Tags {
			if err := cmp.Or(checkSlashes(tag.Key), checkSlashes(tag.Value)); err != nil {
				return err
			}
		}
	}
	if (n.OldFormat == "" || n.DType != "") && !isDType(n.DType) {
		return fmt.Errorf("lmcache: the type %.40q is none of LMCache's: %s", n.DType, strings.Join(DTypes(), ", "))
	}
	for _, tag := range n.Tags {
		if tag.Key == "" || strings.ContainsAny(tag.Key, "@%\x00") || strings.ContainsAny(tag.Value, "@\x00") {
			return fmt.Errorf("lmcache: the tag %.40q: %.40q has a character that separates the fields of LMCache's keys", tag.Key, tag.Value)
		}
	}
	return nil
}

// checkSlashes returns an error if a text comes back changed from the name of a file: another
// text is written alike.
func checkSlashes(text string) error {
	if !strings.Contains(text, strings.Trim(slash, "-")) { // as nearly all
		return nil
	}
	if read := withSlashes(strings.ReplaceAll(text, "/", slash)); read != text {
		return fmt.Errorf("lmcache: %.60q is written with %s for each slash, and LMCache reads as %.60q what is written so; choose another name", text, slash, read)
	}
	return nil
}

// withSlashes reads a part of a file's name.
func withSlashes(part string) string { return strings.ReplaceAll(part, slash, "/") }

// ParseName reads the name of a chunk's file. Of a name with plain hyphens for slashes it
// cannot know that, and returns them as part of the model.
func ParseName(file string) (Name, bool) {
	stem, ok := strings.CutSuffix(file, Suffix)
	if !ok || strings.IndexByte(stem, '/') >= 0 {
		return Name{}, false
	}
	fields := split(make([]string, 0, mostFields), stem)
	n := Name{Layer: NoLayer}
	if len(fields) >= 5 && !isNumber(fields[1]) {
		n.OldFormat, fields = fields[0], fields[1:]
		if n.OldFormat == "" {
			return Name{}, false
		}
	}
	least := 5
	if n.OldFormat != "" {
		least = 4
	}
	if len(fields) < least {
		return Name{}, false
	}
	n.Model = withSlashes(fields[0])
	var err error
	if n.WorldSize, err = number(fields[1]); err != nil {
		return Name{}, false
	}
	if n.WorkerID, err = number(fields[2]); err != nil {
		return Name{}, false
	}
	if n.Hash = fields[3]; !IsHash(n.Hash) {
		return Name{}, false
	}
	if n.OldFormat == "" {
		n.DType = fields[4]
	}
	rest := fields[least:]
	if n.OldFormat != "" && len(rest) > 0 && isDType(rest[0]) {
		n.DType, rest = rest[0], rest[1:]
	}
	if len(rest) > 0 && isNumber(rest[0]) {
		if n.Layer, err = number(rest[0]); err != nil {
			return Name{}, false
		}
		rest = rest[1:]
	}
	for _, field := range rest {
		key, value, ok := strings.Cut(field, "%")
		if !ok {
			return Name{}, false
		}
		n.Tags = append(n.Tags, Tag{withSlashes(key), withSlashes(value)})
	}
	return n, n.Check() == nil
}

// mostFields is how many fields a name has at most without many tags.
const mostFields = 12

// split appends the fields of a name to some, without an allocation where they have room.
func split(fields []string, stem string) []string {
	for more := true; more; {
		var field string
		field, stem, more = strings.Cut(stem, "@")
		fields = append(fields, field)
	}
	return fields
}

func isNumber(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }

// number reads a number as Python writes it.
func number(s string) (int, error) {
	if len(s) > 1 && s[0] == '0' {
		return 0, strconv.ErrSyntax
	}
	n, err := strconv.ParseUint(s, 10, 31)
	return int(n), err
}
