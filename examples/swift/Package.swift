// swift-tools-version: 6.0
import PackageDescription

let package = Package(
    name: "Voxport", platforms: [.macOS(.v15), .iOS(.v18)],
    products: [.library(name: "Voxport", targets: ["Voxport"])],
    targets: [.target(name: "Voxport"), .executableTarget(name: "voxport-runner", dependencies: ["Voxport"])],
    swiftLanguageModes: [.v5]  // one task at a time uses a model; its types are not Sendable
)
