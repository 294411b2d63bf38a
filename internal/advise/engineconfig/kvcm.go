package engineconfig

import (
	"fmt"
	"slices"
	"strings"
)

// RTP-LLM renamed the variables of Tair KVCM in September 2026 (alibaba/rtp-llm, pull
// request 1382). Each version ignores the other's names. Only RECO_MODEL_SDK_CONFIG has
// one name in all versions (docs/kvcm_remote_cache.md there).
const (
	oldKVCM = "RECO_"
	newKVCM = "KVCM_"
)

// kvcmNames lists the renamed variables without their prefix.
func kvcmNames() []string {
	return []string{
		"SERVER_ADDRESS", "ENABLE_VIPSERVER", "VIPSERVER_DOMAIN", "INSTANCE_GROUP", "META_CHANNEL_RETRY_TIME",
		"META_CHANNEL_CONNECTION_TIMEOUT", "META_CHANNEL_CALL_TIMEOUT", "STORAGE_THREAD_NUM", "STORAGE_QUEUE_SIZE", "PUT_TIMEOUT_MS",
		"GET_TIMEOUT_MS", "INSTANCE_ID_SALT", "MODEL_USER_DATA", "MODEL_EXTRA_INFO", "ASYNCWRAPPER_THREAD_NUM",
		"ASYNCWRAPPER_QUEUE_SIZE", "GET_BROADCAST_TIMEOUT", "PUT_BROADCAST_TIMEOUT", "CLIENT_CONFIG",
	}
}

// kvcm returns the value of a renamed variable, "" if neither name has one.
func (e environment) kvcm(name string) string {
	if s := e.text(newKVCM + name); s != "" {
		return s
	}
	return e.text(oldKVCM + name)
}

// kvcmVersions says which versions of RTP-LLM read a file with only one of two names.
func kvcmVersions(m *mapping) {
	var onlyOld, onlyNew []string
	for _, name := range kvcmNames() {
		before, after := m.values[oldKVCM+name], m.values[newKVCM+name]
		switch {
		case before == nil && after == nil:
		case after == nil:
			onlyOld = append(onlyOld, name)
		case before == nil:
			onlyNew = append(onlyNew, name)
		case before != after:
			m.problem(Warning, oldKVCM+name, "differs from "+newKVCM+name+", which RTP-LLM reads since September 2026", "write the same value in both")
		}
	}
	if len(onlyOld) > 0 {
		m.problem(Note, oldKVCM+onlyOld[0], "is read by RTP-LLM before September 2026; newer versions read only "+withPrefix(newKVCM, onlyOld), "for a newer version, write those")
	}
	if len(onlyNew) > 0 {
		m.problem(Note, newKVCM+onlyNew[0], "is read by RTP-LLM since September 2026; older versions read only "+withPrefix(oldKVCM, onlyNew), "for an older version, write those")
	}
}

func withPrefix(prefix string, names []string) string {
	return prefix + strings.Join(names, ", "+prefix)
}

// readKVCMQueries reads the settings that came with the new names. With a value that is
// not allowed, RTP-LLM does not start.
func readKVCMQueries(e environment) {
	m := e.m
	choice := func(key string, words ...string) string {
		s := e.text(key)
		m.known[key] = true
		if s != "" && !slices.Contains(words, s) {
			m.problem(Failure, key, fmt.Sprintf("is %.80q", s), "write one of: "+strings.Join(words, ", "))
			s = ""
		}
		if s == "" {
			return words[0]
		}
		return s
	}
	choice("KVCM_REMOTE_LAYOUT", "legacy", "canonical_v1")
	query := choice("KVCM_DEFAULT_QUERY_TYPE", "2", "1", "3", "4")
	request := choice("KVCM_QUERY_TYPE", "0", "1", "2", "3", "4")
	if request != "0" {
		query = request
	}
	window, replicas := e.whole("KVCM_SW_SIZE"), e.whole("KVCM_MIN_REPLICA_COUNT")
	if query == "3" && window == 0 {
		m.problem(Failure, "KVCM_SW_SIZE", "is 0, but query type 3 needs a window", "write the window's size in blocks")
	}
	if replicas > 1 {
		m.problem(Warning, "KVCM_MIN_REPLICA_COUNT", fmt.Sprintf("is %d; a 3FS is one storage and holds one replica", replicas), "write 1")
	}
	switch backend := choice("KVCM_READ_BACKEND_TYPE", "0", "1", "2", "3", "4", "5", "9"); {
	case backend == "0":
	case request > "1":
		m.problem(Failure, "KVCM_READ_BACKEND_TYPE", fmt.Sprintf("is %s, with which KVCM_QUERY_TYPE may only be 0 or 1", backend), "write KVCM_READ_BACKEND_TYPE=0")
	case backend != "1":
		m.problem(Warning, "KVCM_READ_BACKEND_TYPE", "is "+backend+", which reads from another storage than a 3FS", "write 1, or 0 to read from any")
	}
}

// whole returns a number of at least 0, which is the default.
func (e environment) whole(key string) int64 {
	if strings.TrimSpace(e.text(key)) == "0" {
		return 0
	}
	return e.count(key, 0, maxCount)
}
