"""Word lists of the training sentences, written for this project.

`VERBS` and `ACTIONS` have base, past and -ing form: verbs with and without an object. `FREQUENT` are words of
any kind, for sentences without grammar.
"""


def _words(text: str) -> list[str]:
    """Words, or parts between commas."""
    return [" ".join(word.split()) for word in text.split("," if "," in text else None)]


def _forms(text: str) -> list[tuple[str, str, str]]:
    lines = (line.split() for line in text.split(","))
    return [(base, past, doing) for base, past, doing in lines]


PEOPLE = _words("""
    Alice Anna Ben Carol Daniel David Emma Frank Grace Helen Henry Jack James Jane John Julia Karen Kate
    Laura Lucy Maria Mark Martin Mary Michael Nina Oliver Oscar Paul Peter Rachel Robert Rosa Ruth Sam
    Sarah Simon Sophie Susan Thomas Tom Victor William Zoe Adam Amy Arthur Clara Eric George Hannah Ian
    Kevin Leo
""")
CITIES = _words("""
    London Paris Berlin Rome Madrid Boston Chicago Dublin Oslo Vienna Prague Lisbon Athens Moscow Tokyo
    Sydney Toronto Denver Dallas Seattle Geneva Munich Hamburg Milan Naples Cairo Delhi Bristol Oxford
    Cambridge
""")
DAYS = _words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = _words("January February March April May June July August September October November December")
COLOURS = _words("red green blue yellow black white brown grey orange pink purple golden silver")
RELATIVES = _words("""
    mother father sister brother uncle aunt cousin son daughter wife husband friend teacher doctor
    neighbour boss driver farmer baker nurse lawyer singer writer painter student waiter captain
""")
THINGS = _words("""
    bottle book table chair window door house car train boat plane bicycle bus key letter paper pencil
    picture clock lamp phone computer camera radio box bag basket cup glass plate knife fork spoon bowl
    kettle pan apple banana lemon potato tomato onion carrot egg cake sandwich biscuit loaf coat hat shirt
    shoe sock glove scarf dress jacket ring watch coin ticket map flag ball toy doll drum guitar piano
    violin candle match hammer nail ladder rope brush bucket broom pillow blanket mirror curtain carpet
    shelf drawer garden tree flower leaf rose seed stone rock bridge wall gate fence road street path
    field hill mountain river lake island beach boot button parcel newspaper magazine umbrella suitcase
    engine wheel
""")
ANIMALS = _words("""
    cat dog horse cow sheep goat pig duck hen mouse rabbit fox wolf bear lion tiger monkey elephant bird
    eagle owl fish snake frog bee spider butterfly donkey camel turtle
""")
PLACES = _words("""
    garden, kitchen, bathroom, bedroom, office, school, church, market, station, airport, hotel, library,
    museum, theatre, cinema, hospital, bank, park, forest, village, town, city, castle, harbour, factory,
    bakery, restaurant, supermarket, playground, post office, swimming pool, living room, town hall, train
    station
""")
ADJECTIVES = _words("""
    big small old new young long short tall heavy light cheap broken clean dirty empty full happy sad
    angry tired hungry quick slow quiet loud strong weak warm cold hot dry wet soft hard sweet beautiful
    ugly strange simple famous lucky friendly careful lazy brave clever wonderful terrible expensive
    little round narrow wide deep bright dark smooth rough fresh rich poor kind gentle busy curious
""")
ADVERBS = _words("""
    quickly slowly quietly loudly often never always sometimes usually carefully suddenly finally early
    late together alone again today tomorrow tonight soon later outside inside upstairs downstairs
    everywhere
""")
SKY = _words("""
    sunny rainy cloudy windy foggy stormy snowy cold warm hot dry wet mild clear grey freezing pleasant
""")
SUBJECTS = _words("wind rain snow weather sky sun temperature storm fog frost")
UNITS = _words("minutes hours days weeks months years miles metres pounds dollars kilometres degrees litres")
VERBS = _forms("""
    see saw seeing, find found finding, buy bought buying, sell sold selling, bring brought bringing, take
    took taking, carry carried carrying, paint painted painting, clean cleaned cleaning, open opened
    opening, close closed closing, lose lost losing, hide hid hiding, break broke breaking, wash washed
    washing, repair repaired repairing, watch watched watching, like liked liking, want wanted wanting,
    need needed needing, throw threw throwing, catch caught catching, draw drew drawing, build built
    building, hold held holding, move moved moving, lift lifted lifting, pull pulled pulling, push pushed
    pushing, steal stole stealing, choose chose choosing, forget forgot forgetting, remember remembered
    remembering, follow followed following, touch touched touching, keep kept keeping, send sent sending,
    give gave giving, leave left leaving, show showed showing, love loved loving, use used using, borrow
    borrowed borrowing, count counted counting, drop dropped dropping, describe described describing,
    measure measured measuring, order ordered ordering
""")
ACTIONS = _forms("""
    sleep slept sleeping, walk walked walking, run ran running, sing sang singing, dance danced dancing,
    wait waited waiting, work worked working, play played playing, laugh laughed laughing, cry cried
    crying, eat ate eating, drink drank drinking, read read reading, write wrote writing, swim swam
    swimming, stand stood standing, sit sat sitting, talk talked talking, listen listened listening, smile
    smiled smiling, jump jumped jumping, travel travelled travelling, study studied studying, shout
    shouted shouting, whisper whispered whispering, live lived living, arrive arrived arriving, stay
    stayed staying, rest rested resting, cook cooked cooking, dream dreamed dreaming, drive drove driving
""")
FREQUENT = _words("""
    abandon able about above absence absolute abstract accent accept accident according account accuse
    achieve acid acquire across act action activity actually adapt add address adequate admire admit adopt
    adult advance adventure advice advise affair affect afford afraid afternoon age agency agent agree
    ahead aid aim air alarm album alert alien alive all alliance allow almost along already also although
    altogether amazing ambition among amount analysis ancient and angle animal anniversary announce annual
    another answer anxious any anyone anything apart apartment apology apparent appeal appear appetite
    applause apply appoint appreciate approach appropriate approve arch architect area argue argument
    arise arm armour army around arrange arrest arrival arrow article artist aside ask aspect assemble
    assess asset assign assist assume atmosphere attach attack attempt attend attention attitude attract
    auction audience aunt author authority autumn available average avoid award aware away awful axe baby
    back background bad badge badly bake balance balcony ban band bandage bang banner bar bargain bark
    barrel barrier base basic basis bath battle bay be beam bean bear beard beat because become bedtime
    beef before begin behave behind being belief believe bell belong below belt bench bend benefit beside
    best bet better between beyond bike bill bind birth birthday bishop bit bite bitter blade blame blank
    blast bless blind block blood blouse blow board boast body boil bold bond bone bonus border born both
    bother bottom bounce boundary bow boy brain branch brand brass bread breakfast breath breathe breed
    breeze brick bride brief brilliant bring broad broadcast bronze brother brush bubble budget buffalo
    bullet bunch bundle burden burn burst bury business but butcher butter buyer by cabin cabinet cable
    calendar calf call calm campaign campus can canal cancel candidate candy canvas capital capture carbon
    card care career cargo carriage cart carve case cash cast castle casual catalogue category cattle
    cause cave cease ceiling celebrate cell cement central centre century ceremony certain chain chalk
    challenge champion chance change channel chapter character charge charity charm chase chat check cheek
    cheer cheese chef chemical cherry chest chicken chief child childhood children chimney chin chip
    chocolate choice chorus circle citizen civil claim class clay clear clerk client cliff climate climb
    clinic close cloth clothes cloud clown club clue coach coal coast code coffee collapse collar collect
    collection college colour column comb combine come comedy comfort command comment commerce commit
    committee common community company compare compete complain complete complex concept concern concert
    concrete condition conduct conference confirm conflict confuse connect conscious consent consider
    constant construct contact contain contest context continue contract contrast control convert convince
    cook cope copper copy core corn corner correct corridor cost cotton couch cough could council counter
    country county couple courage course court cover craft crash crazy cream create creature credit crew
    crime crisp critic crop cross crowd crucial cruel crush crystal cube cue culture cup curb cure curl
    current curse curve cushion customer cut cycle daily dairy damage damp danger daring darkness dash
    data daughter dawn daylight dead deaf deal dealer dear death debate decade decide decision deck
    declare decline decorate decrease deer defeat defence defend define degree delay delicate delicious
    delight deliver demand democracy demonstrate dense deny department depend deposit depth deputy derive
    descend desert deserve design desire despair despite destroy detail detect determine develop device
    devil devote dialogue diamond diary dictionary die diet difference different dig digest digital
    dignity dine dinner dip diplomat direction disappear disappoint disaster discipline discount discover
    discuss disease dish dismiss display distance distant district disturb dive divide do doctrine
    document dome domestic donate dose dot double doubt dough down dozen draft drag drain drama dream
    drift drill drink drive drown duke dull dump durable dusk dust duty dwell dye dynamic each eager ear
    earn earth ease east easy echo economy edge editor educate education effect effort eight either elbow
    elder elect electric elegant element elevator eliminate else embrace emerge emergency emotion emperor
    emphasis empire employ enable encounter encourage end endless enemy energy engage enjoy enormous
    enough ensure enter entertain enthusiasm entire entitle entrance envelope environment episode equal
    equip era error escape especially essay essential establish estate estimate eternal evaluate even
    evening event ever every everyone everything evidence evil evolve exact exaggerate example exceed
    excellent except exchange excite exclude excuse execute exercise exhibit exist exit expand expect
    expense experience expert explain explode explore export expose express extend extent external extra
    extract extreme eye eyebrow fabric face facility fact factor fade fail faint fair faith fake fall
    false fame familiar family fancy fantasy far fare farm fashion fast fasten fatal fate fault favour
    fear feather feature federal fee feed feel feet fellow female festival fever few fibre fiction fierce
    fifteen fifth fight figure file fill film final finance fine finger finish fire first fist fit five
    fix flame flash flat flavour flesh flexible flight float flock flood floor flour flow fluid flute fly
    fold folk fond food fool foot for forbid force forecast forehead foreign forest forgive form formal
    former formula fort forth fortnight fortune forward foundation fountain four fraction fragile frame
    frank free freedom freeze freight frequent friction friend fright from front fruit fuel full fun
    function fund funeral funny fur furniture fury future gain gallery gamble game gap garage garbage
    garlic gas gasp gate gather gaze gear gender general generate generation generous genius genuine
    gesture get ghost giant gift girl give glad glance globe glory glow glue go goal gold good govern
    government grab grace gradual graduate grain grammar grant grape graph grasp grass grateful grave
    gravity great greedy greet grief grin grip gross ground group grow growth guarantee guard guess guest
    guide guilty gulf guy habit habitat hair half hall halt ham hammer hand handle handsome hang happen
    harbour harm harmony harsh harvest haste hat hate haul have hazard he head headline heal health heap
    hear heart heat heaven hedge heel height heir hell hello helmet help her herb herd here hero herself
    hesitate high him himself hint hire his history hit hobby hole holiday hollow holy home honest honey
    honour hook hope horizon horn horror horse host hostile hour household housing how however hug huge
    human humble humour hundred hungry hunt hurry hurt hut ice idea ideal identify identity if ignore
    illegal illness image imagine imitate immediate immense immigrant impact imply import important impose
    impress improve impulse in incident include income increase indeed index indicate individual industry
    infant infect inflation influence inform initial injure ink inner innocent input inquiry insect insert
    insist inspect inspire install instance instant instead instinct institute instruct instrument insult
    insurance intend intense interest internal international interpret interrupt interval interview
    intimate introduce invade invent invest investigate invite involve iron isolate issue it item its
    ivory jail jam jaw jealous jelly jet jewel job join joke journal journey joy judge judgement juice
    jungle junior jury just justice keen kick kid kidney kill kind king kingdom kiss kite knee kneel knock
    knot know knowledge label laboratory labour lack lady lamb land landscape lane language lap large
    largely laser last latter laugh launch laundry law lawn lay layer lead leader leaf league lean leap
    learn least leather lecture leg legal legend leisure lend length lens less lesson let level liberal
    liberty licence lid lie life lift like likely limb limit line link lip liquid list listen literature
    load loan lobby local locate lock log logic lonely look loose lord lorry loss lot lottery love low
    loyal luck luggage lump lunch lung luxury machine magic maid mail main maintain major make male man
    manage manner manufacture many marble march margin marine mark market marry mask mass massive master
    mate material mathematics matter may maybe mayor me meadow meal mean meanwhile measure meat mechanic
    medal media medicine medium meet meeting melt member memory mental mention menu mercy mere merit mess
    metal method middle midnight might mild mile military milk mill million mind mine mineral minister
    minor minute mirror misery miss mission mist mistake mix mixture mobile mode model modern modest moist
    moment money monitor monster month mood moon moral more moreover morning mortgage most mother motion
    motive motor mount mouth movement much mud multiply muscle museum mushroom music musician must mutual
    my mystery myth name narrow nasty nation native natural nature navy near nearly neat necessary neck
    necklace needle negative neglect negotiate neither nephew nerve nest net network neutral never
    nevertheless news next nice niece night nightmare nine no noble nobody nod noise none noon nor normal
    north nose not note nothing notice now nowhere nuclear number numerous nut oak obey object objective
    oblige observe obtain obvious occasion occupy occur ocean odd of off offence offer officer oil okay on
    once one onion only onto opera operate operation opinion opponent opportunity oppose opposite optical
    option or orchestra ordinary organ organise origin original other our out outcome output oven over
    overall overcome owe own owner oxygen pack pad page pain paint pair palace palm panel panic parade
    parent parliament part partner party pass passage passion passport past paste patch patience patient
    pattern pause pay peace peak peculiar peel penalty penny pension people pepper per perfect perform
    perhaps period permanent permit person personality persuade pet petrol phase philosophy photograph
    phrase physical piece pigeon pile pilot pin pipe pit pitch pity place plain plan planet plant plaster
    plastic platform play please pleasure plenty plot plug plus pocket poem poetry point poison pole
    police policy polite political poll pollution pond pool pope popular population pork port portion pose
    position positive possess possible post poster pot pound pour poverty powder power practice praise
    pray precious precise predict prefer premier premise prepare prescribe present preserve president
    press pretend pretty prevent previous price pride priest primary prime prince principle print priority
    prison private privilege prize probably problem procedure proceed process produce product profession
    professor profit programme progress project prominent promise prompt pronounce proof proper proportion
    propose prospect prosper protect protest proud prove provide provision psychology public publish pulse
    pump punch punish pupil purchase pure purpose pursue put puzzle qualify quality quantity quarrel
    quarter queen question quite quote rabbit race radical rail raise random range rank rapid rare rat
    rate rather ratio raw ray reach react ready real reason rebel recall receive recent recipe recognise
    recommend record recover recruit reduce refer reflect reform refugee refuse regard region register
    regret regular regulate reject relate relation relax release relevant relief religion reluctant rely
    remain remark remedy remind remote remove rent repeat replace reply report represent reputation
    request require rescue research reserve resident resign resist resolve resort resource respect rest
    restore restrict result retain retire return reveal revenge reverse revise revolution reward rhythm
    rib ribbon rice rid ride ridge right ripe rise risk rival roar roast rob robot rocket role roll
    romantic roof room root rotten route routine row royal rub rubber rubbish rude rug ruin rule ruler
    rumour rural rush rust sack sacred sacrifice saddle safe sail sailor saint sake salad salary salt same
    sample sand satellite satisfy sauce sausage save say scale scan scandal scare scatter scene scheme
    scholar school science scissors scope score scratch scream screen screw script sculpture sea seal
    search season seat second secret secretary section sector secure seed seek seem seize seldom select
    selfish senate senior sense sensible sentence series serious serve service session set settle seven
    several severe sew shade shadow shake shall shallow shame shape share sharp she sheet shell shelter
    shield shift shine ship shiver shock shoot shop shore should shoulder shower shrink shrug shut shy
    sick side sigh sight sign signal silence silk silly silver similar sin since sincere single sink sir
    site six size skate sketch ski skill skin skip skirt skull sleep sleeve slice slide slight slim slip
    slope smart smash smell smoke smooth snow so soap soccer social society sock sofa software soil solar
    soldier solid solution solve some somehow someone something song sore sorry sort soul sound soup
    source south space spare spark speak special speech speed spell spend sphere spice spin spirit spite
    splendid split sponsor sport spot spray spread spring square stable stadium staff stage stain stair
    stake stamp stand standard star stare start state statement station statue status steady steam steel
    steep stem step stick stiff still sting stir stock stomach stool stop storage store storm story stove
    straight strain stranger strategy straw stream strength stretch strike strip stroke structure struggle
    studio stuff stupid style subject substance suburb success such suck sudden suffer sufficient sugar
    suggest suit summer summit sun supper supply support suppose supreme sure surface surgeon surgery
    surprise surrender surround survey survive suspect suspend swallow swear sweat sweep swell swift swing
    switch sword symbol sympathy symptom system table tackle tactic tail tale talent talk tank tape target
    task taste tax tea team tear technique technology teenager telephone television tell temple temporary
    tempt ten tend tennis tension tent term terror test text textile than thank thanks that the their them
    theme themselves then theory there therefore these they thick thief thin thing think third thirty this
    thorough those though thought thousand thread threat three thrill throat through throw thumb thunder
    thus tide tidy tie tight tile till timber time tin tiny tip tissue title to toe together tolerate tomb
    tomorrow tone tongue tonne too tool tooth top torch total touch tourist toward towel tower toxic track
    trade tradition traffic tragedy trail train transfer transform translate transmit transport trap
    travel tray treasure treat treaty tremble trend trial triangle tribe trick trip triumph tropical
    trouble trousers true trumpet trunk trust truth try tube tune tunnel turn twelve twenty twice twist
    two type typical ugly ultimate unable uncertain under undergo understand uniform union unique unit
    unite universe university unless unlike until up upon urban urge urgent us useful usual vacation vague
    vain valley value van vanish variety various vast vegetable vehicle venture version very vessel
    veteran victim victory video view violent virtue visible vision visit visitor vital vivid vocabulary
    voice volume volunteer vote voyage wage wake walk wander war warm warn warrior wash waste water wave
    way we wealth weapon wear weave wedding week weigh weight welcome well west whale what wheat wheel
    when where whether which while whip white who whole whom whose why widow wild will willing win wine
    wing winter wipe wire wisdom wise wish wit witch with within without witness wolf woman women wonder
    wood wool word work world worm worry worship worth would wound wrap wreck wrist write wrong yard year
    yell yellow yes yesterday yet yield you young your yourself youth zebra zero zone zoo
""")
