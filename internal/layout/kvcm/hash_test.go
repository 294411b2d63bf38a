package kvcm

import "testing"

// TestHashOfRocksDB compares with the values in RocksDB's util/hash_test.cc, which has the
// same function: of short texts, and one letter for each length of a long one.
func TestHashOfRocksDB(t *testing.T) {
	for _, c := range []struct {
		text string
		want uint64
	}{
		{"", 5999572062939766020},
		{"\x08", 583283813901344696},
		{"\x4d\x76", 6859542833406258115},
		{"\x30\x46\x0b", 11404699285340020889},
		{"\x67\x53\x81\x1c", 9010661983527562386},
		{"\xd0\x7a\x6e\xea\x56", 6384167718754869899},
		{"\x5c\xbe\x97\x75\x54\x9a\x52", 5716522398211028826},
		{"\x31\x1b\x98\x75\x96\x22\xd3\x9a", 9844314944338447628},
		{"\x1a\xb5\xd0\xfe\xab\xc3\x61\xb2\x99", 13253403748084181481},
		{"\xbd\x2c\x63\x38\xbf\xe9\x78\xb7\xbf\x15", 10551812464348219044},
	} {
		if got := hash64([]byte(c.text), 0); got != c.want {
			t.Errorf("%q has %d, want %d", c.text, got, c.want)
		}
	}
	const digits = "abcdefghijklmnopqrstuvwxyz123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	for repeat, want := range map[string]string{
		"foo": "cRhyWsY67B6klRA1udmOuiYuX7IthyGBKqbeosz2hzVglWCmQx8nEdnpkvPfYX56Up2OWOTV" +
			"lTzfAoYwvtqKzjD8E9xttR2unelbXbIV67NUe6bOO23BxaSFRcA3njGu5cUWfgwOqNoTsszp" +
			"uPvKRP6qaUR5VdoBkJUCFIefd7edlNK5mv6JYWaGdwxehg65hTkTmjZoPKxTZo4PLyzbL9U4" +
			"xt12ITSfeP2MfBHuLI2z2pDlBb44UQKVMx27LEoAHsdLp3WfWfgH3sdRBRCHm33UxCM4QmE2" +
			"xJ7gqSvNwTeH7v9GlC8zWbGroyD3UVNeShMLx29O7tH1biemLULwAHyIw8zdtLMDpEJ8m2ic" +
			"l6Lb4fDuuFNAs1GCVUthjK8CV8SWI8Rsz5THSwn5CGhpqUwSZcFknjwWIl5rNCvDxXJqYr",
		"Rocks": "c1EeRkrzgOYWLA8PuhJrwTePJewoB44WdXYDfhbk3ZxTqqg25WlPExDl7IKIQLJvnA6gJxxn" +
			"9TCSLkFGfJeXehaSS1GBqWSzfhEH4VXiXIUCuxJXxtKXcSC6FrNIQGTZbYDiUOLD6Y5inzrF" +
			"9etwQhXUBanw55xAUdNMFQAm2GjJ6UDWp2mISLiMMkLjANWMKLaZMqaFLX37qB4MRO1ooVRv" +
			"zSvaNRSCLxlggQCasQq8icWjzf3HjBlZtU6pd4rkaUxSzHqmo9oM5MghbU5Rtxg8wEfO7lVN" +
			"5wdMONYecslQTwjZUpO1K3LDf3K3XK6sUXM6ShQQ3RHmMn2acB4YtTZ3QQcHYJSOHn2DuWpa" +
			"Q8RqzX5lab92YmOLaCdOHq1BPsM7SIBzMdLgePNsJ1vvMALxAaoDUHPxoFLO2wx18IXnyX",
	} {
		var text []byte
		for n := range want {
			for len(text) < n {
				text = append(text, repeat[len(text)%len(repeat)])
			}
			if got := digits[hash64(text, 0)%61]; got != want[n] {
				t.Fatalf("%d bytes of %s have %c, want %c", n, repeat, got, want[n])
			}
		}
	}
}

// TestHashWithSeed holds the only part that RocksDB's values do not show: that a seed of 0
// is none, and that any other one changes every length.
func TestHashWithSeed(t *testing.T) {
	text := make([]byte, 2500)
	for n := range len(text) {
		text[n] = byte(n * n)
		plain, seeded := hash64(text[:n], 0), hash64(text[:n], hashSeed)
		if plain == seeded {
			t.Fatalf("the seed does not change the hash of %d bytes", n)
		}
	}
}
