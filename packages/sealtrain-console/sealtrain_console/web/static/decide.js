// Buttons of a recipe's page: a wish to the agent, its challenge to the passkey, the answer back.
"use strict";

(() => {
  const bytes = (text) => Uint8Array.from(atob(text.replace(/-/g, "+").replace(/_/g, "/")), (one) => one.charCodeAt(0));
  const text = (buffer) => btoa(String.fromCharCode(...new Uint8Array(buffer))).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");

  async function ask(op, body) {
    const answer = await fetch(`/agent/${op}`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(body),
    });
    const found = await answer.json();
    if (found.error) throw Object.assign(new Error(found.error.message), found.error);
    return found.done;
  }

  function say(words, kind, code) {
    const place = document.getElementById("outcome");
    if (!place) return;
    const line = document.createElement("p");
    line.className = `state ${kind}`;
    line.textContent = escapeHidden(words);
    if (code) line.dataset.code = code;
    place.replaceChildren(line);
  }

  let asking = false; // whether the agent was asked to sign: then only its terminal knows the end

  async function guarded(act) {
    asking = false;
    const buttons = [...document.querySelectorAll("#approve, #revoke, #enroll")];
    for (const one of buttons) one.disabled = true;
    try {
      await act();
    } catch (error) {
      const code = error.code && typeof error.code === "string" ? error.code : "passkey-unused";
      const unsigned = !asking || code === "agent-declined" || code === "passkey-invalid";
      const outcome = unsigned ? "Nothing was signed." : "Not completed: your agent's terminal says how far it came.";
      say(`${outcome} [${code}] ${error.message}${error.hint ? ` What to do: ${error.hint}` : ""}`, "bad", code);
    } finally {
      for (const one of buttons) one.disabled = false;
    }
  }

  async function decide(action) {
    const form = document.getElementById("decide-form");
    const days = Number(document.getElementById("days").value);
    const lift = action === "approve" && document.getElementById("lift").checked;
    say("Your agent reads the recipe and asks the brokers…", "warn");
    const made = await ask("prepare", { action, compose_hash: form.dataset.hash, days, lift });
    say(`Use your passkey for the decision with the digest ${made.digest}.`, "warn");
    const credential = await navigator.credentials.get({
      publicKey: {
        challenge: bytes(made.challenge),
        rpId: "localhost",
        userVerification: "required",
        allowCredentials: made.passkeys.map((id) => ({ type: "public-key", id: bytes(id) })),
      },
    });
    say("Now read what your agent shows in its terminal, and answer there.", "warn");
    asking = true;
    const signed = await ask("sign", {
      digest: made.digest,
      credential: {
        id: credential.id,
        rawId: text(credential.rawId),
        type: credential.type,
        response: {
          authenticatorData: text(credential.response.authenticatorData),
          clientDataJSON: text(credential.response.clientDataJSON),
          signature: text(credential.response.signature),
        },
      },
    });
    const counted = Object.entries(signed.tallies).map(([url, count]) => `${url} counts ${count}`);
    const failed = Object.entries(signed.failed).map(([url, code]) => `${url} refused: ${code}`);
    say(`Signed by ${made.owner}: ${[...counted, ...failed].join("; ")}.`, failed.length ? "warn" : "good");
    const standing = document.querySelector("[data-part=standing]");
    if (standing) htmx.trigger(standing, "load");
  }

  async function enroll() {
    const { options } = await ask("passkey", {});
    const publicKey = { ...options, challenge: bytes(options.challenge), user: { ...options.user, id: bytes(options.user.id) } };
    publicKey.excludeCredentials = (options.excludeCredentials ?? []).map((one) => ({ ...one, id: bytes(one.id) }));
    const credential = await navigator.credentials.create({ publicKey });
    const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(credential.id)));
    const code = [...digest.slice(0, 4)].map((one) => one.toString(16).padStart(2, "0")).join("");
    say(`This passkey has the code ${code}. Confirm it in your agent's terminal if it shows the same.`, "warn");
    await ask("enroll", {
      credential: {
        id: credential.id,
        rawId: text(credential.rawId),
        type: credential.type,
        response: {
          attestationObject: text(credential.response.attestationObject),
          clientDataJSON: text(credential.response.clientDataJSON),
        },
      },
    });
    location.reload();
  }

  addEventListener("submit", (event) => {
    if (event.target.id !== "decide-form") return;
    event.preventDefault();
    guarded(() => decide("approve"));
  });
  addEventListener("click", (event) => {
    if (event.target.id === "revoke") guarded(() => decide("revoke"));
    if (event.target.id === "enroll") guarded(enroll);
  });
})();
