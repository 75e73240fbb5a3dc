// What a kind of evidence really proves of a machine (spec/evidence.md §6.1): written
// by tools/verifier_page.py from src/sealtrain/base/tiers.py.

/** Strongest first. */
export const TIERS = ["processor", "processor-and-paravisor", "cloud-tpm", "cloud"];

/** What each tier means. */
export const TIER_WORDS = {
  "processor":
    "the processor's vendor vouches for what started and for the encryption of its memory",
  "processor-and-paravisor":
    "the processor's vendor vouches for the encryption of memory and for the cloud's paravisor; the paravisor vouches for what started",
  "cloud-tpm":
    "the processor's vendor vouches for the encryption of memory; the cloud's TPM vouches for what started",
  "cloud":
    "the cloud alone vouches for what started, and nothing shows that memory is encrypted",
};

/** Kind of the processor's evidence → its tier. */
export const TIER_OF_KIND = {
  "dstack": "processor",
  "tdx": "processor",
  "nitro": "cloud",
  "snp": "processor",
  "dstack-gcp-tdx": "processor",
  "dstack-aws-nitro-tpm": "cloud",
  "dstack-amd-sev-snp": "processor",
  "azure-snp": "processor-and-paravisor",
  "azure-tdx": "processor-and-paravisor",
  "gcp-snp": "cloud-tpm",
  "test-vtpm": "cloud",
  "test-nitro": "cloud",
};

/** Whether a tier is at least the lowest that is taken. */
export const reaches = (proven, lowest) =>
  TIERS.indexOf(proven) <= TIERS.indexOf(lowest);
