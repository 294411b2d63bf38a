package keeper

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/keeper/inventory"
)

const (
	rulesName = "keeper-rules"
	// A file has the second version only if it needs it, so that an older daemon reads the others.
	rulesVersion, laterVersion = 1, 2

	mostRules = 10000 // of each sort
)

// Quota is the limit of a directory.
type Quota struct {
	Path  string `json:"path"` // below the data directory
	Bytes int64  `json:"bytes"`

	// What there is now: not kept.
	UsedBytes int64 `json:"used_bytes"`
	Files     int64 `json:"files"`
	Missing   bool  `json:"missing,omitempty"` // there is no such directory now; one that is made there gets the quota
}

// TTL has files go that were not used for so long, whatever room there is.
type TTL struct {
	Pattern string        `json:"pattern"`
	Unused  time.Duration `json:"unused_ns"`
}

// rules is what operators have said. A pattern is that of path.Match, below the data
// directory; it means the files and directories that match, and all below them.
type rules struct {
	quotas []*quota
	pins   []Pin
	ttls   []TTL
}

type quota struct {
	path  string
	bytes int64
	dir   *inventory.Directory // nil while it is missing

	// While the directory is being moved: to where, and its inode. A crash leaves it in one of the two places.
	moving string
	inode  uint64
	move   *quotasMoving // the one that said so last
}

// rulesFile is the file of the rules. Names are bytes, not text, so they are quoted as Go
// quotes them.
type rulesFile struct {
	Version int         `json:"version"`
	Quotas  []quotaLine `json:"quotas,omitempty"`
	Pins    []string    `json:"pins,omitempty"` // those of a pattern alone
	PinsBy  []Pin       `json:"pins_by,omitempty"`
	TTLs    []ttlLine   `json:"ttls,omitempty"`
}

type quotaLine struct {
	Path   string `json:"path"`
	Bytes  int64  `json:"bytes"`
	Moving string `json:"moving_to,omitempty"`
	Inode  uint64 `json:"inode,omitempty"`
}

type ttlLine struct {
	Pattern string `json:"pattern"`
	Seconds int64  `json:"seconds"`
}

// It is no errno: those are of calls to the disk, which are tried again.
var errMoving = errors.New("it has one of the two without the other, or is of a later version")

// decodeRules reads the file of the rules. It accepts only what encode writes, and no error of it is an errno.
func decodeRules(b []byte) (rules, error) {
	var file rulesFile
	d := json.NewDecoder(strings.NewReader(string(b)))
	d.DisallowUnknownFields()
	if err := d.Decode(&file); err != nil {
		return rules{}, err
	}
	if _, err := d.Token(); err != io.EOF {
		return rules{}, errors.New("there is more after the rules")
	}
	if file.Version != rulesVersion && file.Version != laterVersion {
		return rules{}, fmt.Errorf("version %d; this daemon knows versions %d and %d", file.Version, rulesVersion, laterVersion)
	}
	if max(len(file.Quotas), len(file.Pins)+len(file.PinsBy), len(file.TTLs)) > mostRules {
		return rules{}, fmt.Errorf("more than %d rules", mostRules)
	}
	var r rules
	for _, q := range file.Quotas {
		dir, err := strconv.Unquote(q.Path)
		if err == nil {
			err = checkQuota(dir, q.Bytes)
		}
		if err != nil {
			return rules{}, fmt.Errorf("quota of %s: %w", q.Path, err)
		}
		one := &quota{path: dir, bytes: q.Bytes, inode: q.Inode}
		if q.Moving != "" {
			if one.moving, err = strconv.Unquote(q.Moving); err == nil {
				err = checkQuota(one.moving, q.Bytes)
			}
		}
		if err == nil && ((q.Moving == "") != (q.Inode == 0) || q.Moving != "" && file.Version < laterVersion) {
			err = errMoving
		}
		if err != nil {
			return rules{}, fmt.Errorf("quota of %s, which moves to %s as inode %d: %w", q.Path, q.Moving, q.Inode, err)
		}
		r.quotas = append(r.quotas, one)
	}
	if len(file.PinsBy) > 0 && file.Version < laterVersion || slices.ContainsFunc(file.PinsBy, func(p Pin) bool { return p.Origin == Origin{} }) {
		return rules{}, errors.New("a pin by what names tell is not one, or of a later version")
	}
	for _, pin := range file.Pins {
		file.PinsBy = append(file.PinsBy, Pin{Pattern: pin})
	}
	for _, pin := range file.PinsBy {
		quoted := pin
		err := pin.unquote()
		if err == nil {
			err = pin.check()
		}
		if err != nil {
			return rules{}, fmt.Errorf("pin of %v: %w", quoted, err)
		}
		r.pins = append(r.pins, pin)
	}
	for _, t := range file.TTLs {
		pattern, err := strconv.Unquote(t.Pattern)
		if err == nil {
			err = checkPattern(pattern)
		}
		if err == nil && (t.Seconds < 1 || t.Seconds > mostTTL) {
			err = fmt.Errorf("%d seconds", t.Seconds)
		}
		if err != nil {
			return rules{}, fmt.Errorf("TTL of %s: %w", t.Pattern, err)
		}
		r.ttls = append(r.ttls, TTL{pattern, time.Duration(t.Seconds) * time.Second})
	}
	return r, nil
}

// quote makes texts of the pin's bytes, as they are in the file.
func (p *Pin) quote() {
	p.Pattern = strconv.Quote(p.Pattern)
	if p.Model != "" {
		p.Model = strconv.Quote(p.Model)
	}
}

func (p *Pin) unquote() (err error) {
	if p.Pattern, err = strconv.Unquote(p.Pattern); err == nil && p.Model != "" {
		p.Model, err = strconv.Unquote(p.Model)
	}
	return err
}

func (r *rules) encode() ([]byte, error) {
	file := rulesFile{Version: rulesVersion}
	for _, q := range r.quotas {
		line := quotaLine{Path: strconv.Quote(q.path), Bytes: q.bytes}
		if q.moving != "" {
			line.Moving, line.Inode, file.Version = strconv.Quote(q.moving), q.inode, laterVersion
		}
		file.Quotas = append(file.Quotas, line)
	}
	for _, p := range r.pins {
		p.quote()
		if p.Origin == (Origin{}) {
			file.Pins = append(file.Pins, p.Pattern)
		} else {
			file.PinsBy, file.Version = append(file.PinsBy, p), laterVersion
		}
	}
	for _, t := range r.ttls {
		file.TTLs = append(file.TTLs, ttlLine{strconv.Quote(t.Pattern), int64(t.Unused / time.Second)})
	}
	b, err := json.MarshalIndent(file, "", "\t")
	return append(b, '\n'), err
}

const mostTTL = 100 * 365 * 24 * 3600 // seconds

func checkQuota(dir string, bytes int64) error {
	switch {
	case dir != path.Clean(dir) || dir == "." || path.IsAbs(dir) || dir == ".." || strings.HasPrefix(dir, "../") || strings.Contains(dir, "\x00"):
		return errors.New("the path must be that of a directory below the data directory")
	case bytes < leastLimit || Limit{Bytes: bytes}.check() != nil:
		return fmt.Errorf("%d bytes: a quota is at least 1 MiB", bytes)
	}
	return nil
}

func checkPattern(pattern string) error {
	if pattern == "" || pattern != path.Clean(pattern) || path.IsAbs(pattern) || pattern == ".." || strings.HasPrefix(pattern, "../") || strings.Contains(pattern, "\x00") {
		return errors.New("the pattern must be relative to the data directory")
	}
	if _, err := path.Match(pattern, ""); err != nil {
		return fmt.Errorf("%q: %w", pattern, err)
	}
	return nil
}

// covers reports whether a pattern means a path, or a directory above it.
func covers(pattern, file string) bool {
	if pattern == "." {
		return true
	}
	// A pattern matches as many names as it has.
	end := 0
	for range strings.Count(pattern, "/") + 1 {
		if end == len(file) {
			return false
		}
		if next := strings.IndexByte(file[min(end+1, len(file)):], '/'); next >= 0 {
			end += 1 + next
		} else {
			end = len(file)
		}
	}
	ok, _ := path.Match(pattern, file[:end])
	return ok
}

// below returns the path of the deepest directory that holds all that a pattern can match.
func below(pattern string) string {
	if i := strings.IndexAny(pattern, `*?[\`); i >= 0 {
		pattern = pattern[:i]
	}
	i := strings.LastIndexByte(pattern, '/')
	if i < 0 {
		return "."
	}
	return pattern[:i]
}

// loadRules reads what operators have said before. A file that cannot be understood is an
// error: without the quotas in it, a user could fill the disk.
func (k *Keeper) loadRules() error {
	removeUnfinished(k.StateDir, rulesName)
	var err error
	if k.rules, err = readRules(k.StateDir); err != nil {
		return err
	}
	k.endMoves()
	k.findQuotas()
	return nil
}

// readRules reads the file of the rules; without one there are none.
func readRules(stateDir string) (r rules, err error) {
	name := filepath.Join(stateDir, rulesName)
	b, err := os.ReadFile(name)
	if errors.Is(err, os.ErrNotExist) {
		return rules{}, nil
	}
	if err == nil {
		r, err = decodeRules(b)
	}
	if err != nil {
		return rules{}, fmt.Errorf("quotas, pins and TTLs in %s: %w: repair the file, or remove it and set them again", name, err)
	}
	return r, nil
}

// HasRules reports whether a state directory holds quotas, pins or TTLs. Errors are those of a
// file that cannot be understood.
func HasRules(stateDir string) (bool, error) {
	r, err := readRules(stateDir)
	return len(r.quotas)+len(r.pins)+len(r.ttls) > 0, err
}

// saveRules keeps the rules. A directory that was moved keeps its quota. The caller holds savingMu, so no older text takes the
// place of a newer one.
func (k *Keeper) saveRules() error {
	k.rulesMu.Lock()
	k.followQuotasLocked()
	stale := k.rulesStale
	k.rulesStale = false
	b, err := k.rules.encode()
	k.rulesMu.Unlock()
	if err == nil {
		err = replace(k.StateDir, rulesName, func(w io.Writer) error {
			_, err := w.Write(b)
			return err
		})
	}
	if err != nil && stale {
		k.rulesMu.Lock()
		k.rulesStale = true
		k.rulesMu.Unlock()
	}
	return err
}

// followQuotasLocked sees where the directories with quotas are now.
func (k *Keeper) followQuotasLocked() {
	for _, q := range k.rules.quotas {
		if q.dir == nil {
			continue
		}
		at, there := k.inv.Path(q.dir)
		switch {
		case !there:
			q.dir = nil
		case at != q.path:
			q.path, k.rulesStale = at, true
		}
	}
}

// findQuotas gives directories that were made, or found, their quotas; and keeps a quota
// for the path where the directory was removed. It reports whether what is saved is out of date.
func (k *Keeper) findQuotas() (stale bool) {
	found := map[*quota]*inventory.Directory{}
	for q, at := range k.missingQuotas() {
		if d, err := k.inv.Find(at); err == nil {
			found[q] = d
		}
	}
	k.rulesMu.Lock()
	defer k.rulesMu.Unlock()
	for _, q := range k.rules.quotas { // without those that were removed meanwhile
		if d := found[q]; d != nil && q.dir == nil {
			q.dir = d
			d.SetLimit(q.bytes)
		}
	}
	return k.rulesStale
}

// missingQuotas returns the quotas of directories that are not known, and the paths of these.
func (k *Keeper) missingQuotas() map[*quota]string {
	k.rulesMu.Lock()
	defer k.rulesMu.Unlock()
	k.followQuotasLocked()
	all := map[*quota]string{}
	for _, q := range k.rules.quotas {
		if q.dir == nil {
			all[q] = q.path
		}
	}
	return all
}

// SetQuota limits what a directory and everything below it may take, also after a restart.
// A directory keeps its quota when it is renamed. Errors are those of the path.
func (k *Keeper) SetQuota(dir string, bytes int64) error {
	dir = path.Clean(dir)
	if err := checkQuota(dir, bytes); err != nil {
		return fmt.Errorf("quota of %q: %w", dir, err)
	}
	d, err := k.inv.Find(dir)
	if err != nil {
		return fmt.Errorf("quota of %q: %w", dir, err)
	}
	return k.change(func(r *rules) error {
		k.followQuotasLocked()
		r.quotas = slices.DeleteFunc(slices.Clone(r.quotas), func(q *quota) bool { return q.path == dir || q.dir == d })
		if len(r.quotas) >= mostRules {
			return fmt.Errorf("quota of %q: there are %d quotas already: %w", dir, mostRules, unix.ENOSPC)
		}
		r.quotas = append(r.quotas, &quota{path: dir, bytes: bytes, dir: d})
		return nil
	}, func() { d.SetLimit(bytes) })
}

// RemoveQuota ends the quota of a directory. ENOENT: it has none.
func (k *Keeper) RemoveQuota(dir string) error {
	dir = path.Clean(dir)
	var q *quota
	return k.change(func(r *rules) error {
		k.followQuotasLocked()
		i := slices.IndexFunc(r.quotas, func(q *quota) bool { return q.path == dir })
		if i < 0 {
			return fmt.Errorf("quota of %q: %w", dir, unix.ENOENT)
		}
		q = r.quotas[i]
		r.quotas = slices.Delete(slices.Clone(r.quotas), i, i+1)
		return nil
	}, func() {
		if q.dir != nil {
			q.dir.SetLimit(inventory.Unlimited)
		}
	})
}

// Quotas returns all quotas, in the order of their paths.
func (k *Keeper) Quotas() []Quota {
	k.rulesMu.Lock()
	defer k.rulesMu.Unlock()
	k.followQuotasLocked()
	var all []Quota
	for _, q := range k.rules.quotas {
		one := Quota{Path: q.path, Bytes: q.bytes, Missing: q.dir == nil}
		if q.dir != nil {
			one.UsedBytes, one.Files = q.dir.Bytes(), q.dir.Files()
		}
		all = append(all, one)
	}
	slices.SortFunc(all, func(a, b Quota) int { return strings.Compare(a.Path, b.Path) })
	return all
}

// AddPin adds a pin, and RemovePin ends one. ENOENT: there is no such pin.
func (k *Keeper) AddPin(p Pin) error {
	if err := p.check(); err != nil {
		return fmt.Errorf("pin: %w", err)
	}
	return k.change(func(r *rules) error {
		if slices.Contains(r.pins, p) {
			return nil
		}
		if len(r.pins) >= mostRules {
			return fmt.Errorf("there are %d pins already: %w", mostRules, unix.ENOSPC)
		}
		r.pins = append(slices.Clone(r.pins), p)
		return nil
	}, nil)
}

// RemovePin ends what AddPin began.
func (k *Keeper) RemovePin(p Pin) error {
	return k.change(func(r *rules) error {
		i := slices.Index(r.pins, p)
		if i < 0 {
			return fmt.Errorf("pin of %v: %w", p, unix.ENOENT)
		}
		r.pins = slices.Delete(slices.Clone(r.pins), i, i+1)
		return nil
	}, nil)
}

// Pins returns all pins.
func (k *Keeper) Pins() []Pin {
	k.rulesMu.Lock()
	defer k.rulesMu.Unlock()
	return slices.Clone(k.rules.pins)
}

// SetTTL has files that a pattern matches go when they were not used for so long; 0: no more.
func (k *Keeper) SetTTL(pattern string, unused time.Duration) error {
	if err := checkPattern(pattern); err != nil {
		return fmt.Errorf("TTL: %w", err)
	}
	if unused != 0 && (unused < time.Second || unused > mostTTL*time.Second) {
		return fmt.Errorf("TTL of %q: %v: give at least a second and at most 100 years", pattern, unused)
	}
	return k.change(func(r *rules) error {
		r.ttls = slices.DeleteFunc(slices.Clone(r.ttls), func(t TTL) bool { return t.Pattern == pattern })
		if unused == 0 {
			return nil
		}
		if len(r.ttls) >= mostRules {
			return fmt.Errorf("there are %d TTLs already: %w", mostRules, unix.ENOSPC)
		}
		r.ttls = append(r.ttls, TTL{pattern, unused.Truncate(time.Second)})
		return nil
	}, nil)
}

// TTLs returns all TTLs.
func (k *Keeper) TTLs() []TTL {
	k.rulesMu.Lock()
	defer k.rulesMu.Unlock()
	return slices.Clone(k.rules.ttls)
}

// change changes rules and keeps the change, and then calls kept with rulesMu held, unless it is nil; or it leaves all as it was.
// fn is called with rulesMu held, and changes slices to new ones.
func (k *Keeper) change(fn func(*rules) error, kept func()) error {
	k.savingMu.Lock()
	defer k.savingMu.Unlock()
	k.rulesMu.Lock()
	before := k.rules
	next := before
	err := fn(&next)
	if err == nil {
		k.rules = next
	}
	k.rulesMu.Unlock()
	if err != nil {
		return err
	}
	err = k.saveRules()
	k.rulesMu.Lock()
	if err != nil {
		k.rules = before // nobody else changes them meanwhile
	} else if kept != nil {
		kept()
	}
	k.rulesMu.Unlock()
	if err != nil {
		return err
	}
	k.wake()
	k.kickNow()
	return nil
}

// pinOf returns the first pin that keeps a file.
func (k *Keeper) pinOf(file string) (Pin, bool) {
	k.rulesMu.Lock()
	pins := k.rules.pins
	k.rulesMu.Unlock()
	i := slices.IndexFunc(pins, func(p Pin) bool { return p.holds(file) })
	if i < 0 {
		return Pin{}, false
	}
	return pins[i], true
}

func (k *Keeper) pinned(file string) bool {
	_, is := k.pinOf(file)
	return is
}
