// Makes the local cluster's certificates and keys in a folder: an authority, a server certificate for
// the API server, the controllers' health and the nodes' kubelet ports, a client certificate for each of
// its users, and the key pair that signs service account tokens. etcd has an authority of its own, so that
// no user of the API server can pass it by. Standard library only, so it builds in seconds.
package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"flag"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const validFor = 10 * 365 * 24 * time.Hour

// users maps a client certificate's file name to the Kubernetes user and group it proves.
var users = map[string]pkix.Name{
	"admin":              {CommonName: "admin", Organization: []string{"system:masters"}},
	"controller-manager": {CommonName: "system:kube-controller-manager"},
	"scheduler":          {CommonName: "system:kube-scheduler"},
	"kubelet-client":     {CommonName: "kube-apiserver", Organization: []string{"system:masters"}},
}

// authority is the certificate and key that sign all others.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func main() {
	folder := flag.String("folder", "", "where the files go; it must exist")
	hosts := flag.String("hosts", "", "comma-separated names and addresses of the API server and the nodes")
	flag.Parse()
	if *folder == "" || *hosts == "" {
		fmt.Fprintln(os.Stderr, "give both --folder and --hosts")
		os.Exit(64)
	}
	if err := makeAll(*folder, strings.Split(*hosts, ",")); err != nil {
		fmt.Fprintln(os.Stderr, "certificates:", err)
		os.Exit(1)
	}
}

func makeAll(folder string, hosts []string) error {
	if err := makeEtcd(folder); err != nil {
		return err
	}
	ca, err := makeAuthority(folder, "ca")
	if err != nil {
		return err
	}
	for name, subject := range users {
		if err := ca.issue(folder, name, &x509.Certificate{
			Subject:     subject,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		}); err != nil {
			return err
		}
	}
	server := &x509.Certificate{
		Subject:     pkix.Name{CommonName: "kube-apiserver"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, host := range hosts {
		if address := net.ParseIP(host); address != nil {
			server.IPAddresses = append(server.IPAddresses, address)
		} else {
			server.DNSNames = append(server.DNSNames, host)
		}
	}
	if err := ca.issue(folder, "server", server); err != nil {
		return err
	}
	return makeTokenKeys(folder)
}

// makeEtcd issues what etcd serves and calls itself with, and what the API server calls it with.
func makeEtcd(folder string) error {
	ca, err := makeAuthority(folder, "etcd-ca")
	if err != nil {
		return err
	}
	if err := ca.issue(folder, "etcd", &x509.Certificate{
		Subject:     pkix.Name{CommonName: "etcd"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}); err != nil {
		return err
	}
	return ca.issue(folder, "etcd-client", &x509.Certificate{
		Subject:     pkix.Name{CommonName: "kube-apiserver"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

func makeAuthority(folder, name string) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "millrace-local-" + name},
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	ca := &authority{certificate: template, key: key}
	if err := ca.sign(folder, name, template, key); err != nil {
		return nil, err
	}
	return ca, nil
}

func (ca *authority) issue(folder, name string, template *x509.Certificate) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	return ca.sign(folder, name, template, key)
}

func (ca *authority) sign(folder, name string, template *x509.Certificate, key *ecdsa.PrivateKey) error {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return err
	}
	template.SerialNumber = serial
	// An hour back, because a virtual machine's clock may step after it wakes.
	template.NotBefore = time.Now().Add(-time.Hour)
	template.NotAfter = template.NotBefore.Add(validFor)
	der, err := x509.CreateCertificate(rand.Reader, template, ca.certificate, &key.PublicKey, ca.key)
	if err != nil {
		return err
	}
	if err := write(folder, name+".crt", "CERTIFICATE", der, 0o644); err != nil {
		return err
	}
	return writeKey(folder, name+".key", key)
}

func makeTokenKeys(folder string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return err
	}
	if err := write(folder, "tokens.pub", "PUBLIC KEY", public, 0o644); err != nil {
		return err
	}
	return writeKey(folder, "tokens.key", key)
}

func writeKey(folder, name string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return write(folder, name, "EC PRIVATE KEY", der, 0o600)
}

func write(folder, name, kind string, der []byte, mode os.FileMode) error {
	text := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	return os.WriteFile(filepath.Join(folder, name), text, mode)
}
