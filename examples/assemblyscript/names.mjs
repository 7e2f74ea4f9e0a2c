// Gives the exported functions of abi.ts the names of the contract, after asc has compiled them.

const LIFECYCLE = "fulcrum:policy/lifecycle@1.0.0#";
const SCORING = "fulcrum:policy/scoring@1.0.0#";

export default class Names {
  afterCompile(module) {
    const rename = (name, prefix) => {
      module.removeExport(name);
      module.addFunctionExport(`abi/${name}`, prefix + name);
    };
    for (const name of ["describe", "configure"]) rename(name, LIFECYCLE);
    for (const name of ["roster", "refresh", "recommend", "explain"]) rename(name, SCORING);
    module.removeExport("fail");
  }
}
