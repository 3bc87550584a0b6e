// What the scripts of node clients share; see checks.py.
import { readFileSync } from "node:fs";

export const { VOXPORT_ADDRESS: ADDRESS, VOXPORT_KEY: KEY, VOXPORT_RECORDING: RECORDING } = process.env;
export const TEXT = "Seven green bottles are standing on the wall.";
export const recording = () => readFileSync(RECORDING);

export async function check(name, uses) {
  const lines = [];
  for (const [use, run] of Object.entries(uses)) {
    const late = new Promise((_, reject) => setTimeout(() => reject(new Error("60 s are over")), 60_000).unref());
    try {
      const value = await Promise.race([run(), late]);
      if (!value) throw new Error(`gives ${value}`);
      lines.push(use);
    } catch (error) {
      process.exitCode = 1;
      lines.push(`${use} FAILS (${String(error.message ?? error).replaceAll(/\s+/g, " ").slice(0, 300)})`);
    }
  }
  const version = JSON.parse(readFileSync(`node_modules/${name}/package.json`)).version;
  console.log(`${name} ${version}: ${lines.join(", ")}`);
}
