package api

import (
	"time"

	"github.com/kv3fs/kv3fs/internal/keeper"
)

// Status is the answer of /status: what is served, and whether it is well.
type Status struct {
	Version       string    `json:"version"`
	PID           int       `json:"pid"`
	Host          string    `json:"host"`
	Identity      string    `json:"identity"` // of this host's state
	Started       time.Time `json:"started"`
	Now           time.Time `json:"now"`
	UptimeSeconds float64   `json:"uptime_seconds"`
	Mount         string    `json:"mount"`
	Data          string    `json:"data"`
	Readonly      bool      `json:"readonly"`
	Shared        bool      `json:"shared"` // other hosts may use the data directory
	IO            string    `json:"io"`
	Checksums     bool      `json:"checksums"`
	Passthrough   bool      `json:"passthrough"`

	Health    Health       `json:"health"`
	Checks    []Check      `json:"checks"`
	Addresses Addresses    `json:"addresses"`
	Space     *Space       `json:"space"` // nil: the file system does not answer
	Limits    Limits       `json:"limits"`
	Keeper    *Kept        `json:"keeper"` // nil: there is none, or another host's keeps the directory
	Rings     RingTotals   `json:"rings"`
	Clients   ClientTotals `json:"clients"`
	Findings  *Summary     `json:"findings"` // nil: the doctor has not looked yet
}

// Health is a word for how a daemon is.
type Health string

// From good to bad. Unhealthy: a check is not ready. Warnings: the doctor has found something.
const (
	Healthy   Health = "healthy"
	Warnings  Health = "warnings"
	Unhealthy Health = "unhealthy"
)

// Check is one of those that decide whether the daemon can serve, as /readyz has them.
type Check struct {
	Name  string `json:"name"`
	Ready bool   `json:"ready"`
	Error string `json:"error"` // why not
}

// Addresses are where the daemon listens.
type Addresses struct {
	Admin string   `json:"admin"` // a URL; "": nowhere
	Pages []string `json:"pages"`
}

// Space is what the data directory's file system has.
type Space struct {
	SizeBytes int64  `json:"size_bytes"`
	FreeBytes int64  `json:"free_bytes"` // for users other than root
	Files     uint64 `json:"files"`      // 0: it does not count them
	FreeFiles uint64 `json:"free_files"`
}

// Limits are what clients together may hold.
type Limits struct {
	Registrations int   `json:"registrations"`
	RingUsers     int   `json:"ring_users"`
	MappedBytes   int64 `json:"mapped_bytes"`
}

// Kept is what the data directory takes and may take.
type Kept struct {
	Capacity   string `json:"capacity"` // as it was given; "none"
	LimitBytes int64  `json:"limit_bytes"`
	UsedBytes  int64  `json:"used_bytes"`
	Files      int64  `json:"files"`
	Scanned    bool   `json:"scanned"` // everything has been found
}

// RingTotals are what rings have moved since the start.
type RingTotals struct {
	Reads      int64 `json:"reads_total"`
	Writes     int64 `json:"writes_total"`
	ReadBytes  int64 `json:"read_bytes_total"`
	WriteBytes int64 `json:"write_bytes_total"`
	Failed     int64 `json:"failed_total"`
}

// ClientTotals are what clients hold.
type ClientTotals struct {
	Processes int   `json:"processes"`
	Rings     int   `json:"rings"`
	Iovs      int   `json:"iovs"`
	IovBytes  int64 `json:"iov_bytes"`
}

// Summary is the doctor's findings in short.
type Summary struct {
	Checked  time.Time `json:"checked"`
	Error    string    `json:"error"` // why the last look failed; what is here was found before
	Warnings int       `json:"warnings"`
	Failures int       `json:"failures"`
	Top      []Finding `json:"top"` // the worst, three at most
}

// Finding is one of the doctor's.
type Finding struct {
	ID     string `json:"id"` // stable across versions
	Status string `json:"status"`
	Found  string `json:"found"`
	Needed string `json:"needed"`
	Fix    string `json:"fix"`
}

// The words of Finding.Status, from harmless to fatal.
const (
	FindingOK      = "ok"
	FindingNote    = "note"
	FindingWarning = "warning"
	FindingFailure = "failure"
)

// Findings is the answer of /findings, the worst first.
type Findings struct {
	Checked  *time.Time `json:"checked"` // nil: the doctor has not looked yet
	Running  bool       `json:"running"` // it looks now
	Error    string     `json:"error"`   // why the last look failed; what is here was found before
	Warnings int        `json:"warnings"`
	Failures int        `json:"failures"`
	Findings []Finding  `json:"findings"`
}

// History is the answer of /history: columns of equal length, by time.
type History struct {
	Window      string   `json:"window"`
	StepSeconds int      `json:"step_seconds"`
	First       int64    `json:"first"`    // number of the first step here; each has the next number
	Measured    int64    `json:"measured"` // number of the last step that was measured: who has all up to it asks for what is after it
	Times       []int64  `json:"times"`    // the end of each step, in seconds since 1970
	Series      []Series `json:"series"`
}

// Series is one column. A nil value is a gap: nobody measured, or there was nothing to measure.
type Series struct {
	Name   string     `json:"name"`
	Unit   string     `json:"unit"`
	Values []*float64 `json:"values"`
}

// Usage is the answer of /usage: what is in a directory, by directory, and by engine and model.
type Usage struct {
	Keeps       bool        `json:"keeps"` // there is a keeper; else nobody knows
	Path        string      `json:"path"`
	Complete    bool        `json:"complete"` // everything has been found after the start
	Bytes       int64       `json:"bytes"`
	Files       int64       `json:"files"`
	Directories []Directory `json:"directories"` // the largest first, as all lists here
	More        int         `json:"more"`        // directories that were left out
	Engines     []Engine    `json:"engines"`
}

// Directory is what a directory takes with all below it.
type Directory struct {
	Path        string      `json:"path"` // below the data directory
	Bytes       int64       `json:"bytes"`
	Files       int64       `json:"files"`
	LimitBytes  int64       `json:"limit_bytes"` // its quota; 0: none
	Directories []Directory `json:"directories"`
	More        int         `json:"more"`
}

// Engine is what the files of an engine take, as their names tell.
type Engine struct {
	Engine string  `json:"engine"`
	Bytes  int64   `json:"bytes"`
	Files  int64   `json:"files"`
	Models []Model `json:"models"`
}

// Model is what an engine's files of a model take.
type Model struct {
	Model       string  `json:"model"` // "": the names do not tell
	Bytes       int64   `json:"bytes"`
	Files       int64   `json:"files"`
	Directories []Place `json:"directories"` // that have them
}

// Place is what a directory has of a model.
type Place struct {
	Path  string `json:"path"`
	Bytes int64  `json:"bytes"`
	Files int64  `json:"files"`
}

// Hits is the answer of /hits: what engines that keep a file per block looked up and found.
type Hits struct {
	Lookups  int64     `json:"lookups_total"`
	Hits     int64     `json:"hits_total"`
	HitRatio *float64  `json:"hit_ratio"` // nil: nothing was looked up
	Engines  []HitRate `json:"engines"`   // most lookups first
}

// HitRate is that of an engine and a model.
type HitRate struct {
	Engine   string   `json:"engine"`
	Model    string   `json:"model"`
	Lookups  int64    `json:"lookups_total"`
	Hits     int64    `json:"hits_total"`
	Misses   int64    `json:"misses_total"`
	HitRatio *float64 `json:"hit_ratio"`
}

// Keeping is the answer of /keeper.
type Keeping struct {
	Keeps         bool          `json:"keeps"`
	Why           string        `json:"why"` // why not
	State         *keeper.State `json:"state"`
	Evictions     []Eviction    `json:"evictions"`
	AgeAtEviction *Ages         `json:"age_at_eviction"` // nil: not known
	Quotas        []Quota       `json:"quotas"`
	Pins          []Pin         `json:"pins"`
	TTLs          []TTL         `json:"ttls"`
}

// Eviction counts the files that were removed for a reason since the start.
type Eviction struct {
	Reason string `json:"reason"` // room, ttl, abandoned, operator
	Files  int64  `json:"files_total"`
	Bytes  *int64 `json:"bytes_total"` // nil: not counted
}

// Ages is a histogram of how long files were unused when they were removed for room.
type Ages struct {
	BoundsSeconds []float64 `json:"bounds_seconds"`
	Files         []int64   `json:"files"` // within each bound and not the one before; then the older ones
	Count         int64     `json:"count"`
	SumSeconds    float64   `json:"sum_seconds"`
}

// Quota is a directory's limit.
type Quota struct {
	Path       string `json:"path"`
	LimitBytes int64  `json:"limit_bytes"`
	UsedBytes  int64  `json:"used_bytes"`
	Files      int64  `json:"files"`
	Missing    bool   `json:"missing"` // there is no such directory now
}

// Pin keeps what a pattern matches.
type Pin struct {
	Pattern string `json:"pattern"`
	Owner   string `json:"owner"`
	Model   string `json:"model"`
}

// TTL has files go that were not used for so long.
type TTL struct {
	Pattern       string  `json:"pattern"`
	UnusedSeconds float64 `json:"unused_seconds"`
}

// Curve is the answer of /curve: what caches of other sizes would have served, and what this one did.
type Curve struct {
	Points   []CurvePoint `json:"points"` // the smallest first; none: nothing was used yet, or there is no keeper
	HitRatio float64      `json:"hit_ratio"`
	Uses     float64      `json:"uses"` // recent ones count more
}

// CurvePoint says what a cache of a size would have served.
type CurvePoint struct {
	CapacityBytes int64   `json:"capacity_bytes"`
	Factor        float64 `json:"factor"` // of what there is now
	HitRatio      float64 `json:"hit_ratio"`
}

// Clients is the answer of /clients: the processes with rings or iovs, those with the largest iovs first.
type Clients struct {
	ClientTotals
	Clients []Client `json:"clients"`
	More    int      `json:"more"` // processes that were left out
}

// Client is one process, or all of a user that the daemon cannot see.
type Client struct {
	PID           int            `json:"pid"` // as the daemon sees it; 0: it cannot
	UID           uint32         `json:"uid"`
	User          string         `json:"user"` // "": not known
	Name          string         `json:"name"` // of the program
	Rings         int            `json:"rings"`
	Iovs          int            `json:"iovs"`
	IovBytes      int64          `json:"iov_bytes"`
	Registrations []Registration `json:"registrations"`
	More          int            `json:"more"` // registrations that were left out
}

// Registration is a ring or an iov.
type Registration struct {
	Name      string `json:"name"`
	Target    string `json:"target"`
	Kind      string `json:"kind"`      // ring, iov
	Direction string `json:"direction"` // of a ring: read, write
	Priority  string `json:"priority"`  // of a ring: high, normal, low
	Depth     int    `json:"depth"`     // of a ring
	Entries   int    `json:"entries"`   // of a ring: requests that it has room for
	Bytes     int64  `json:"bytes"`
}

// Pages is the answer of /pages.
type Pages struct {
	Serves bool        `json:"serves"` // there is a page service
	Here   bool        `json:"here"`   // this host has the index; else another one's spaces are not shown
	Spaces []PageSpace `json:"spaces"`
	More   int         `json:"more"` // spaces that were left out
}

// PageSpace is a set of keys.
type PageSpace struct {
	Namespace string       `json:"namespace"`
	Set       string       `json:"set"`
	World     int          `json:"world"` // ranks that a key needs to be complete
	Keys      int64        `json:"keys"`
	Complete  int64        `json:"complete"`
	Leased    int64        `json:"leased"` // keys that may not be evicted now
	Ranks     []PageRank   `json:"ranks"`
	More      int          `json:"more"` // ranks that were left out
	Counters  PageCounters `json:"counters"`
}

// PageRank counts the pages of a rank by who has them.
type PageRank struct {
	Rank     int   `json:"rank"`
	NumPages int64 `json:"num_pages"`
	Free     int64 `json:"free"`
	KeptFree int64 `json:"kept_free"` // among the free ones
	Reserved int64 `json:"reserved"`
	Keyed    int64 `json:"keyed"`
	Resting  int64 `json:"resting"` // given up, and not yet to be written again
}

// PageCounters count events of a space since the start.
type PageCounters struct {
	Hits         int64 `json:"hits_total"`
	Misses       int64 `json:"misses_total"`
	Reserved     int64 `json:"reserved_total"`
	Refused      int64 `json:"refused_total"`
	Confirmed    int64 `json:"confirmed_total"`
	Ignored      int64 `json:"ignored_total"`
	Evicted      int64 `json:"evicted_total"`
	Expired      int64 `json:"expired_total"`
	Released     int64 `json:"released_total"`
	DroppedPages int64 `json:"dropped_pages_total"`
}

// Hosts is the answer of /hosts: those that share one page index.
type Hosts struct {
	Cluster bool   `json:"cluster"` // false: this host has an index of its own, or none
	Store   string `json:"store"`
	Self    string `json:"self"`
	Role    string `json:"role"`
	Leader  string `json:"leader"` // "": none is known
	Why     string `json:"why"`    // what is wrong
	Hosts   []Host `json:"hosts"`
}

// Host is one of them.
type Host struct {
	ID      string `json:"id"`
	Address string `json:"address"`
	Version string `json:"version"`
	Role    string `json:"role"`
	Applied uint64 `json:"applied"` // index in the common log
	Lag     uint64 `json:"lag"`     // entries behind its end
	Self    bool   `json:"self"`
}

// Log is the answer of /log, oldest lines first.
type Log struct {
	Lines   []LogLine `json:"lines"`
	Next    uint64    `json:"next"`    // what to give as after, for what comes later
	Dropped uint64    `json:"dropped"` // lines after that one which are kept no more
}

// LogLine is a line of the log.
type LogLine struct {
	Seq        uint64      `json:"seq"` // from 1
	Time       time.Time   `json:"time"`
	Level      string      `json:"level"`
	Message    string      `json:"message"`
	Attributes []Attribute `json:"attributes"`
}

// Attribute is a key and a value of a line, groups joined by dots.
type Attribute struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// LogLevel is what is asked of /log-level, and its answer.
type LogLevel struct {
	Level string `json:"level"` // debug, info, warn, error
}

// Failure is the answer to a request that failed.
type Failure struct {
	Error string `json:"error"`
	Cure  string `json:"cure"` // "": none is known
}
