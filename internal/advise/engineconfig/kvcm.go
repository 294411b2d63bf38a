package engineconfig

import (
	"fmt"
	"strings"

	"github.com/kv3fs/kv3fs/internal/rtpkeys"
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
	for _, r := range rtpkeys.CheckQueries(e.text) {
		m.problem(Failure, r.Name, r.What, r.Fix)
	}
	for _, key := range rtpkeys.Queries() {
		m.known[key] = true
	}
	if replicas, refused := rtpkeys.Number("KVCM_MIN_REPLICA_COUNT", e.text("KVCM_MIN_REPLICA_COUNT")); refused == nil && replicas > 1 {
		m.problem(Warning, "KVCM_MIN_REPLICA_COUNT", fmt.Sprintf("is %d; a 3FS is one storage and holds one replica", replicas), "write 1")
	}
	request, _ := rtpkeys.Word("KVCM_QUERY_TYPE", e.text("KVCM_QUERY_TYPE"))
	if backend, refused := rtpkeys.Word("KVCM_READ_BACKEND_TYPE", e.text("KVCM_READ_BACKEND_TYPE")); refused == nil && backend > "1" && request <= "1" {
		m.problem(Warning, "KVCM_READ_BACKEND_TYPE", "is "+backend+", which reads from another storage than a 3FS", "write 1, or 0 to read from any")
	}
}
