package host

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/choria-io/go-choria/protocol"
	"github.com/choria-io/tokens"
	"github.com/golang-jwt/jwt/v5"
	"golang.org/x/crypto/cryptobyte"
	cbasn1 "golang.org/x/crypto/cryptobyte/asn1"

	"github.com/choria-provisioner/provisioner/helper"
)

// csrOracle judges a CSR by other means than checkCSR: it takes the DER apart
// with cryptobyte, collects every common name and alternative name there is, and
// checks an RSA signature by hand.
func csrOracle(data []byte, identity string) bool {
	const begin, end = "-----BEGIN CERTIFICATE REQUEST-----", "-----END CERTIFICATE REQUEST-----"
	text := strings.TrimSpace(string(data))
	body, ok := strings.CutPrefix(text, begin)
	body, rest, found := strings.Cut(body, end)
	if !ok || !found || strings.TrimSpace(rest) != "" {
		return false
	}
	der, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(body), ""))
	if err != nil {
		return false
	}

	in := cryptobyte.String(der)
	var request, info, subject cryptobyte.String
	if !in.ReadASN1(&request, cbasn1.SEQUENCE) || !in.Empty() {
		return false
	}
	var signed cryptobyte.String
	if whole := request; !whole.ReadASN1Element(&signed, cbasn1.SEQUENCE) {
		return false
	}
	var version, modulus big.Int
	var exponent int
	var algorithm, spki, key, rsaKey cryptobyte.String
	var keyBits, signature []byte
	if !request.ReadASN1(&info, cbasn1.SEQUENCE) || !request.ReadASN1(&algorithm, cbasn1.SEQUENCE) ||
		!request.ReadASN1BitStringAsBytes(&signature) ||
		!info.ReadASN1Integer(&version) || !info.ReadASN1(&subject, cbasn1.SEQUENCE) || !info.ReadASN1(&spki, cbasn1.SEQUENCE) ||
		!spki.ReadASN1(&key, cbasn1.SEQUENCE) || !spki.ReadASN1BitStringAsBytes(&keyBits) {
		return false
	}
	rsaKey = cryptobyte.String(keyBits)
	if !rsaKey.ReadASN1(&key, cbasn1.SEQUENCE) || !key.ReadASN1Integer(&modulus) || !key.ReadASN1Integer(&exponent) {
		return false
	}
	sum := sha256.Sum256(signed)
	if rsa.VerifyPKCS1v15(&rsa.PublicKey{N: &modulus, E: exponent}, 5 /* SHA-256 */, sum[:], signature) != nil {
		return false
	}

	var names []string
	for !subject.Empty() {
		var set cryptobyte.String
		if !subject.ReadASN1(&set, cbasn1.SET) {
			return false
		}
		for !set.Empty() {
			var attr, value cryptobyte.String
			var oid []byte
			var tag cbasn1.Tag
			if !set.ReadASN1(&attr, cbasn1.SEQUENCE) || !attr.ReadASN1Bytes(&oid, cbasn1.OBJECT_IDENTIFIER) || !attr.ReadAnyASN1(&value, &tag) {
				return false
			}
			if !bytes.Equal(oid, []byte{0x55, 4, 3}) {
				return false
			}
			names = append(names, string(value))
		}
	}
	if len(names) != 1 {
		return false
	}
	// every alternative name, wherever in the attributes its object identifier is
	for rest := []byte(info); ; {
		i := bytes.Index(rest, []byte{6, 3, 0x55, 0x1d, 0x11})
		if i < 0 {
			break
		}
		rest = rest[i+5:]
		value := cryptobyte.String(rest)
		var octets, general cryptobyte.String
		value.SkipOptionalASN1(cbasn1.BOOLEAN)
		if !value.ReadASN1(&octets, cbasn1.OCTET_STRING) || !octets.ReadASN1(&general, cbasn1.SEQUENCE) || !octets.Empty() {
			return false
		}
		for !general.Empty() {
			var name cryptobyte.String
			var tag cbasn1.Tag
			if !general.ReadAnyASN1(&name, &tag) || tag != cbasn1.Tag(2).ContextSpecific() {
				return false
			}
			names = append(names, string(name))
		}
	}

	return !slices.ContainsFunc(names, func(n string) bool { return n != identity })
}

// FuzzReadCSR: what checkCSR accepts the oracle accepts. Not the other way
// round: the oracle knows less of what is malformed.
func FuzzReadCSR(f *testing.F) {
	key, err := rsaKey()
	if err != nil {
		f.Fatal(err)
	}
	add := func(edit func(*x509.CertificateRequest)) []byte {
		r := &x509.CertificateRequest{Subject: pkix.Name{CommonName: testIdentity}}
		edit(r)
		der, err := x509.CreateCertificateRequest(nil, r, key)
		if err != nil {
			f.Fatal(err)
		}
		data := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
		f.Add(data)
		return data
	}
	good := add(func(*x509.CertificateRequest) {})
	sameSAN := add(func(r *x509.CertificateRequest) { r.DNSNames = []string{testIdentity} })
	for _, data := range [][]byte{good, sameSAN} {
		if checkCSR(data, testIdentity, nil) != nil || !csrOracle(data, testIdentity) {
			f.Fatal("a good CSR is refused by the check or by its oracle")
		}
	}
	for _, edit := range []func(*x509.CertificateRequest){
		func(r *x509.CertificateRequest) { r.Subject.CommonName = "n2.example.net" },
		func(r *x509.CertificateRequest) { r.DNSNames = []string{"x.example.net"} },
		func(r *x509.CertificateRequest) { r.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)} },
		func(r *x509.CertificateRequest) { r.EmailAddresses = []string{"a@b.c"} },
	} {
		data := add(edit)
		if checkCSR(data, testIdentity, nil) == nil || csrOracle(data, testIdentity) {
			f.Fatalf("a bad CSR is accepted by the check or by its oracle:\n%s", data)
		}
	}
	f.Add([]byte("-----BEGIN CERTIFICATE REQUEST-----\n-----END CERTIFICATE REQUEST-----\n"))
	f.Add(append(slices.Clone(good), good...))
	f.Add(append(append(slices.Clone(good[:len(good)-1]), 1, '\n'), good...))

	f.Fuzz(func(t *testing.T, data []byte) {
		if checkCSR(data, testIdentity, nil) == nil && !csrOracle(data, testIdentity) {
			t.Errorf("accepted, and the oracle refuses it:\n%s", data)
		}
	})
}

// FuzzReadJWT: a reply is accepted exactly when the JWT library, asked plainly,
// accepts its token and the claims say what they must.
func FuzzReadJWT(f *testing.F) {
	private := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{7}, 32))
	public := private.Public().(ed25519.PublicKey)
	ecdh := strings.Repeat("ab", 32)
	reply := func(token, ecdh string) []byte {
		data, err := json.Marshal(map[string]string{"jwt": token, "ecdh_public": ecdh})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
		return data
	}
	sign := func(method jwt.SigningMethod, key any, claims jwt.MapClaims) string {
		token, err := jwt.NewWithClaims(method, claims).SignedString(key)
		if err != nil {
			f.Fatal(err)
		}
		return token
	}
	in1h, ago := time.Now().Add(time.Hour).Unix(), time.Now().Add(-time.Hour).Unix()
	good := jwt.MapClaims{"purpose": "choria_provisioning", "cht": "s3cret", "exp": in1h}
	oracle := func(data []byte) bool {
		var r struct {
			JWT        string `json:"jwt"`
			ECDHPublic string `json:"ecdh_public"`
		}
		if json.Unmarshal(data, &r) != nil {
			return false
		}
		token, err := jwt.Parse(strings.TrimSpace(r.JWT), func(*jwt.Token) (any, error) { return public, nil }, jwt.WithValidMethods([]string{"EdDSA"}))
		if err != nil || !token.Valid {
			return false
		}
		claims := token.Claims.(jwt.MapClaims)
		key, err := hex.DecodeString(r.ECDHPublic)
		return err == nil && len(key) == 32 &&
			(claims["purpose"] == "choria_provisioning" || claims["sub"] == "choria_provisioning") && claims["tcs"] == nil
	}

	accept := [][]byte{
		reply(sign(jwt.SigningMethodEdDSA, private, good), ecdh),
		reply(" "+sign(jwt.SigningMethodEdDSA, private, good)+"\n", ecdh),
		reply(sign(jwt.SigningMethodEdDSA, private, jwt.MapClaims{"sub": "choria_provisioning"}), ecdh),
	}
	refuse := [][]byte{
		reply("", ecdh),
		reply("junk", ecdh),
		reply(sign(jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, good), ecdh),
		reply(sign(jwt.SigningMethodHS256, []byte(public), good), ecdh),
		reply(sign(jwt.SigningMethodEdDSA, ed25519.NewKeyFromSeed(bytes.Repeat([]byte{8}, 32)), good), ecdh),
		reply(sign(jwt.SigningMethodEdDSA, private, jwt.MapClaims{"purpose": "choria_server", "exp": in1h}), ecdh),
		reply(sign(jwt.SigningMethodEdDSA, private, jwt.MapClaims{"purpose": "choria_provisioning", "exp": ago}), ecdh),
		reply(sign(jwt.SigningMethodEdDSA, private, jwt.MapClaims{"purpose": "choria_provisioning", "nbf": in1h}), ecdh),
		reply(sign(jwt.SigningMethodEdDSA, private, good), "ab"),
		reply(sign(jwt.SigningMethodEdDSA, private, good), strings.Repeat("zz", 32)),
		reply(sign(jwt.SigningMethodEdDSA, private, good), strings.Repeat("ab", 33)),
	}
	for i, data := range accept {
		if _, _, _, err := readJWT(data, public); err != nil || !oracle(data) {
			f.Fatalf("must-accept %d: %v", i, err)
		}
	}
	for i, data := range refuse {
		if _, _, _, err := readJWT(data, public); err == nil || oracle(data) {
			f.Fatalf("must-refuse %d is accepted", i)
		}
	}

	f.Fuzz(func(t *testing.T, data []byte) {
		raw, claims, key, err := readJWT(data, public)
		if (err == nil) != oracle(data) {
			t.Fatalf("error %v, and the oracle says %v", err, oracle(data))
		}
		if err != nil {
			return
		}
		if len(key) != 32 || !json.Valid(raw) || !json.Valid(claims) {
			t.Errorf("ECDH key of %d bytes, claims %s", len(key), claims)
		}
		var parsed tokens.ProvisioningClaims
		if json.Unmarshal(claims, &parsed) != nil || parsed.Token != "" || parsed.ProvNatsPass != "" || parsed.ProvNatsUser != "" {
			t.Errorf("secrets are left in %s", claims)
		}
	})
}

// FuzzReadKey: a reply is accepted exactly when its key, read by other means,
// signed the nonce.
func FuzzReadKey(f *testing.F) {
	const nonce = "6e6f6e6365"
	private := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{7}, 32))
	key, signature := hex.EncodeToString(private.Public().(ed25519.PublicKey)), hex.EncodeToString(ed25519.Sign(private, []byte(nonce)))
	reply := func(key, signature, directory any) []byte {
		data, err := json.Marshal(map[string]any{"public_key": key, "signature": signature, "directory": directory})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
		return data
	}
	oracle := func(data []byte) bool {
		var r struct {
			Key       hexBytes `json:"public_key"`
			Signature hexBytes `json:"signature"`
			Directory string   `json:"directory"`
		}
		if json.Unmarshal(data, &r) != nil || len(r.Key) != 32 || len(r.Signature) != 64 || r.Directory == "" || len(r.Directory) > 1000 || strings.ContainsFunc(r.Directory, unicode.IsControl) {
			return false
		}
		for other := range 64 {
			if ed25519.Verify(ed25519.PublicKey(r.Key), fmt.Append(nil, nonce, other), r.Signature) {
				return false // it fits whatever was signed
			}
		}
		return ed25519.VerifyWithOptions(ed25519.PublicKey(r.Key), []byte(nonce), r.Signature, &ed25519.Options{}) == nil
	}
	neutral := "01" + strings.Repeat("00", 31)
	accept := [][]byte{
		reply(key, signature, "/etc/choria"),
		reply(strings.ToUpper(key), strings.ToUpper(signature), "/"),
	}
	refuse := [][]byte{
		reply("", "", ""),
		reply(key, signature, ""),
		reply(key, signature, "/etc\nevil=1"),
		reply(key[:62], signature, "/"),
		reply(key+"00", signature, "/"),
		reply(key, signature[:126], "/"),
		reply(key, strings.Repeat("00", 64), "/"),
		reply(strings.Repeat("00", 32), signature, "/"),
		reply(neutral, neutral+strings.Repeat("00", 32), "/"),
		reply(strings.Repeat("g", 64), signature, "/"),
		reply(5, signature, "/"),
		reply(nil, nil, nil),
		reply([]string{key}, signature, "/"),
	}
	for i, data := range accept {
		if _, _, _, err := readKey(data, nonce); err != nil || !oracle(data) {
			f.Fatalf("must-accept %d: %v", i, err)
		}
	}
	for i, data := range refuse {
		if _, _, _, err := readKey(data, nonce); err == nil || oracle(data) {
			f.Fatalf("must-refuse %d is accepted", i)
		}
	}

	f.Fuzz(func(t *testing.T, data []byte) {
		if _, _, _, err := readKey(data, nonce); (err == nil) != oracle(data) {
			t.Errorf("error %v, and the oracle says %v", err, oracle(data))
		}
	})
}

// hexBytes reads hex without encoding/hex.
type hexBytes []byte

func (h *hexBytes) UnmarshalJSON(data []byte) error {
	var s string
	if err := json.Unmarshal(data, &s); err != nil {
		return err
	}
	*h = nil
	for i := 0; i+1 < len(s); i += 2 {
		hi, lo := strings.IndexByte("0123456789abcdef", s[i]|0x20), strings.IndexByte("0123456789abcdef", s[i+1]|0x20)
		if hi < 0 || lo < 0 || s[i] < '0' || s[i+1] < '0' {
			*h = nil
			return nil
		}
		*h = append(*h, byte(hi<<4|lo))
	}
	if len(s)%2 != 0 {
		*h = nil
	}
	return nil
}

// FuzzReadInventory: a reply is accepted exactly when, decoded without a type in
// mind, it is an object whose fields are what they must be.
func FuzzReadInventory(f *testing.F) {
	oracle := func(data []byte) (ok bool, facts any, version string, upgradable bool) {
		var r map[string]any
		if json.Unmarshal(data, &r) != nil {
			return false, nil, "", false
		}
		// Of two spellings of a field encoding/json takes the last.
		for k := range r {
			for _, field := range []string{"facts", "version", "upgradable"} {
				if k != field && strings.EqualFold(k, field) {
					return strings.Contains(string(data), k), nil, "?", false
				}
			}
		}
		switch v := r["version"].(type) {
		case nil:
		case string:
			version = v
		default:
			return false, nil, "", false
		}
		switch u := r["upgradable"].(type) {
		case nil:
		case bool:
			upgradable = u
		default:
			return false, nil, "", false
		}
		switch fs := r["facts"].(type) {
		case nil:
		case map[string]any:
			facts = fs
		default:
			return false, nil, "", false
		}
		return true, facts, version, upgradable
	}
	for _, tc := range []struct {
		data string
		good bool
	}{
		{`{"facts":{"site":"ldn1"},"version":"0.30.2","upgradable":true}`, true},
		{`{}`, true},
		{`null`, true},
		{`{"facts":null,"version":null}`, true},
		{`{"facts":{"a":[[[[[]]]]]},"unknown":1}`, true},
		{``, false},
		{`[]`, false},
		{`"x"`, false},
		{`{"facts":[1]}`, false},
		{`{"facts":"x"}`, false},
		{`{"facts":5}`, false},
		{`{"version":5}`, false},
		{`{"version":{"a":1}}`, false},
		{`{"upgradable":"true"}`, false},
		{`{"facts":{"a":` + strings.Repeat("[", 20000) + strings.Repeat("]", 20000) + `}}`, false},
		{`{"facts":{}} {}`, false},
	} {
		f.Add([]byte(tc.data))
		_, _, _, err := readInventory([]byte(tc.data))
		if ok, _, _, _ := oracle([]byte(tc.data)); (err == nil) != tc.good || ok != tc.good {
			f.Fatalf("%.60s: error %v, oracle %v, want good to be %v", tc.data, err, ok, tc.good)
		}
	}

	f.Fuzz(func(t *testing.T, data []byte) {
		facts, version, upgradable, err := readInventory(data)
		ok, wantFacts, wantVersion, wantUpgradable := oracle(data)
		if wantVersion == "?" {
			return
		}
		if (err == nil) != ok {
			t.Fatalf("error %v, and the oracle says %v", err, ok)
		}
		if err != nil {
			return
		}
		var got any
		if facts != nil {
			if err := json.Unmarshal(facts, &got); err != nil {
				t.Fatalf("facts are no JSON: %v", err)
			}
		}
		if !reflect.DeepEqual(got, wantFacts) || version != wantVersion || upgradable != wantUpgradable {
			t.Errorf("read %v %q %v, the oracle %v %q %v", got, version, upgradable, wantFacts, wantVersion, wantUpgradable)
		}
	})
}

// FuzzCheckAnswer: whatever is accepted reads back from the node's file
// as it was meant, by go-choria's own rules for a line.
func FuzzCheckAnswer(f *testing.F) {
	for _, kv := range [][2]string{
		{"a", "b"}, {"a", ""}, {"a", "b=c"}, {"a.b", " c "}, {"a", "b\nc"}, {"a", "b\rc"}, {"a\n", "b"}, {"", "b"}, {" ", "b"}, {"#a", "b"}, {"a=b", "c"},
		{"plugin.choria.server.provision", "1"}, {"plugin.choria.server.provision ", "yes"}, {"a", strings.Repeat("x", 70000)}, {"a", "\u00a0"}, {"a", "\u2028x"},
	} {
		f.Add(kv[0], kv[1])
	}

	f.Fuzz(func(t *testing.T, key, value string) {
		if helper.CheckAnswer(helper.Configure(map[string]string{key: value})) != nil {
			return
		}
		file := "first=1\n" + key + "=" + value + "\nlast=2\n"
		got := nodeReads(file)
		if got["first"] != "1" || got["last"] != "2" || len(got) > 3 {
			t.Fatalf("%q=%q: the node reads %q", key, value, got)
		}
		delete(got, "first")
		delete(got, "last")
		for k, v := range got {
			if strings.TrimSpace(k) != strings.TrimSpace(key) || strings.TrimSpace(v) != strings.TrimSpace(value) {
				t.Errorf("%q=%q: the node reads %q=%q", key, value, k, v)
			}
			if k == "plugin.choria.server.provision" && slices.Contains([]string{"1", "yes", "true", "y", "t"}, strings.ToLower(strings.TrimSpace(v))) {
				t.Errorf("%q=%q leaves provisioning on", key, value)
			}
		}
	})
}

// FuzzIsReply: what go-choria can read as a message counts as a reply.
func FuzzIsReply(f *testing.F) {
	f.Add([]byte(`{"protocol":"choria:transport:1","data":"x","headers":{"mc_sender":"n1"}}`))
	f.Add([]byte(`{"protocol":"io.choria.protocol.v2.transport"}`))
	f.Add([]byte(`{"protocol":"choria:reply:1"}`))
	f.Add([]byte(`junk`))
	f.Add([]byte(nil))
	f.Fuzz(func(t *testing.T, data []byte) {
		var r struct {
			Protocol string `json:"protocol"`
		}
		known := json.Unmarshal(data, &r) == nil && (r.Protocol == string(protocol.TransportV1) || r.Protocol == string(protocol.TransportV2))
		if known && !isReply(data) && strings.Count(string(data), "rotocol") == 1 {
			t.Errorf("%q is a message and does not count", data)
		}
	})
}
